"""Samples that cannot be used: what is counted, and when it is too much."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from millrace.common.errors import MillraceError
from millrace.common.loading.bad_samples import BadSample, BadSamples


def batch(planned: int, *reasons: str, filler: bool = False) -> SimpleNamespace:
    bad = [
        BadSample(number, 100 + number, reason, f"it is {reason}")
        for number, reason in enumerate(reasons)
    ]
    return SimpleNamespace(planned=planned, bad=bad, filler=filler)


def counted(most: float, rows: int, *batches: SimpleNamespace) -> BadSamples:
    samples = BadSamples(most, rows, lambda row, message: f"row {row}")
    for each in batches:
        samples.add(each)
    return samples


def test_reasons_are_counted_and_a_filler_is_not_counted_twice():
    samples = counted(
        1.0, 10, batch(4, "torn", "empty"), batch(4, "torn", filler=True), batch(3, "torn")
    )
    assert (samples.count, samples.planned) == (3, 7)
    assert dict(samples.reasons) == {"torn": 2, "empty": 1}
    assert [bad.sample_id for bad in samples.examples] == [100, 101, 100]


@pytest.mark.parametrize(
    "most, rows, planned, bad, is_refused",
    [
        (0.01, 5000, 20, 10, False),  # of the first 1,000 rows one in a hundred may be bad
        (0.01, 5000, 20, 11, True),
        (0.01, 5000, 2000, 20, False),
        (0.01, 5000, 2000, 21, True),
        (0.5, 10, 4, 5, False),  # a small corpus is judged by all its rows
        (0.5, 10, 4, 6, True),
        (0.0, 10, 4, 0, False),
        (0.0, 10, 4, 1, True),
        (1.0, 10, 10, 10, False),
    ],
)
def test_a_run_is_stopped_above_the_share_of_at_least_so_many_rows(
    most, rows, planned, bad, is_refused
):
    samples = counted(most, rows, batch(planned, *["torn"] * bad))
    if not is_refused:
        samples.check()
        return
    with pytest.raises(MillraceError) as error:
        samples.check()
    shown = min(bad, 5)
    assert str(error.value).count(
        "(torn): it is torn"
    ) == shown and f"row {shown - 1} (torn)" in str(error.value)
    assert (
        f"{bad} of {planned} samples so far cannot be used, more than max_bad_fraction {most:g}"
        " allows" in str(error.value)
    )
    assert f"(torn {bad})" in str(error.value) and "raise max_bad_fraction" in str(error.value)
