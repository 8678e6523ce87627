"""What the sweep of a country deletes, and what it leaves."""

from pathlib import Path

import pytest

from millrace.speech.shards.sweep import sweep_country


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """A tar, its sidecar and both folders of tables, of a partition of each of two countries."""
    made = []
    for country in ("niger", "nigeria"):
        name = f"{country}-test-00000"
        made += [
            tmp_path / f"shards/{country}/test/{file}" for file in (f"{name}.tar", f".{name}.index.parquet")
        ]
        made += [tmp_path / f"{root}/partitions/{name}/table.parquet" for root in ("shards", "manifest")]
    for path in made:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")
    return made


def test_a_country_whose_name_begins_another_one_is_swept_alone(tmp_path, files):
    deleted = sweep_country(tmp_path / "shards", tmp_path / "manifest", "niger", set())
    assert [path.exists() for path in files] == [False] * 4 + [True] * 4
    assert len(deleted) == 4 and not (tmp_path / "shards/niger/test").exists()


def test_partitions_that_exist_keep_their_files(tmp_path, files):
    assert sweep_country(tmp_path / "shards", tmp_path / "manifest", "niger", {"niger-test-00000"}) == []
    assert all(path.exists() for path in files)
