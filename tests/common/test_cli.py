"""Command lines of steps: errors a person can mend are one line, exit code 1, no traceback."""

from __future__ import annotations

import argparse
import errno
import itertools
import os
import re
import subprocess
import sys

import pytest

from millrace.common import cli
from millrace.common.errors import MillraceError
from tests.workflow.workflow import ROOT


def said(capsys: pytest.CaptureFixture[str], error: BaseException, code: int = 1) -> str:
    """The one line that a step says which ends with this error and exit code."""

    @cli.step(argparse.ArgumentParser)
    def main(args: argparse.Namespace) -> None:
        raise error

    assert main([]) == code
    (line,) = capsys.readouterr().err.splitlines()
    return line


@pytest.mark.parametrize(
    "name, shown",
    [
        ("italy", "italy"),
        ("Österreich/日本", "Österreich/日本"),
        ("red \x1b[31m", "red \\x1b[31m"),
        ("up\x1b[2A\r", "up\\x1b[2A\\r"),
        ("c1 \x9b2J", "c1 \\x9b2J"),
        ("txt.\u202egpj", "txt.\\u202egpj"),
        ("isolate \u2066x\u2069", "isolate \\u2066x\\u2069"),
        ("half \ud83d", "half \\ud83d"),
        ("a\nMillrace: all is well", "a\\nMillrace: all is well"),
    ],
)
def test_names_of_others_leave_the_terminal_as_it_is(capsys, name, shown):
    @cli.step(argparse.ArgumentParser)
    def main(args):
        if "\n" not in name:
            cli.log.info("reading %s", name)
        raise MillraceError("it is empty", where=name)

    assert main([]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert lines[-1].endswith(f"ERROR {shown}: it is empty")
    assert len(lines) == 1 or lines[0].endswith(f"INFO reading {shown}")


@pytest.mark.parametrize(
    "arguments, text",
    [
        (("problem",), "problem"),
        (("problem", "file"), "file: problem"),
        (("problem", "", "Mend it"), "problem. Mend it"),
        (("problem", "file", "Mend it"), "file: problem. Mend it"),
    ],
)
def test_an_error_is_one_line_with_and_without_its_parts(capsys, arguments, text):
    assert said(capsys, MillraceError(*arguments)).endswith(f" ERROR {text}")


@pytest.mark.parametrize(
    "error, words",
    [
        (errno.ENOSPC, "results/x.tar: the disk is full"),
        (errno.EDQUOT, "results/x.tar: the disk is full"),
        (errno.EFBIG, "results/x.tar: the file is larger than this shell"),
        (errno.EROFS, "results/x.tar: Read-only file system. Name a place that may be written"),
        (errno.EACCES, "results/x.tar: Permission denied. Name a place that may be written"),
        (errno.EPERM, "results/x.tar: Operation not permitted. Name a place"),
        (errno.EISDIR, "results/x.tar: Is a directory. Name a place"),
        (errno.EEXIST, "results/x.tar: File exists. Name a place"),
        (errno.ENOTDIR, "results/x.tar: Not a directory. Name a place"),
        (errno.ENAMETOOLONG, "results/x.tar: File name too long. Name a place"),
        (errno.ENOENT, "snakemake --forcerun results/x.tar"),
        (errno.EIO, "snakemake --forcerun results/x.tar"),
        (RuntimeError("flush failed (file write failed: errno = 28, buf = 0x1)"), "disk is full"),
        (RuntimeError("flush failed (file write failed: errno = 27, buf = 0x1)"), "ulimit -f"),
    ],
)
def test_what_the_system_refuses_is_one_line_with_the_remedy(capsys, error, words):
    if isinstance(error, int):
        error = OSError(error, os.strerror(error), "results/x.tar")
    assert words in said(capsys, error)


@pytest.mark.parametrize(
    "error", [KeyError("defect"), RuntimeError("[enforce fail at inline_container.cc:672]")]
)
def test_a_defect_is_not_hidden(capsys, error):
    with pytest.raises(type(error), match=re.escape(str(error))):
        said(capsys, error)


def test_success_is_zero_and_arguments_arrive_as_typed_and_as_spelled():
    seen = []

    def make_parser():
        parser = argparse.ArgumentParser()
        parser.add_argument("--a-flag")
        return parser

    @cli.step(make_parser, cli.hyphenated)
    def main(args):
        seen.append((args.a_flag, args.typed))

    assert main(["--a_flag=b_c"]) == 0 and seen == [("b_c", ["--a_flag=b_c"])]
    assert cli.step(argparse.ArgumentParser)(lambda args: 3)([]) == 3


def test_a_reader_that_goes_away_is_no_traceback():
    program = (
        "from millrace.common import cli\n"
        "import argparse\n"
        "@cli.step(argparse.ArgumentParser)\n"
        "def main(args):\n"
        "    for number in range(100000): print(number, flush=True)\n"
        "raise SystemExit(main())"
    )
    done = subprocess.run(
        ["bash", "-c", f"{sys.executable} -c '{program}' | head -1"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.stdout == "0\n"
    assert "Traceback" not in done.stderr


def test_options_may_not_be_abbreviated():
    parser = cli.parser("What it does.\n\nMore of it.", "millrace.speech.step")
    parser.add_argument("--max-cer", type=float)
    with pytest.raises(SystemExit):
        parser.parse_args(["--max", "1"])
    assert parser.prog == "python -m millrace.speech.step"
    assert parser.description == "What it does." and parser.epilog == "More of it."
    cli.parser(None, None).format_help()


def test_the_help_shows_every_default_and_no_missing_one():
    parser = cli.parser("What\nit does.\n\n  Indented,\n  as written.", "millrace.speech.step")
    for name, default in {
        "a": 0,
        "b": ["x", "y"],
        "c": "50 %",
        "d": None,
        "e": "",
        "f": [],
    }.items():
        parser.add_argument(f"--{name}", default=default, nargs="*", help="some text")
    parser.add_argument("--g", default=3, help="default: three")
    parser.add_argument("--h", action="store_true", help="some text")
    assert parser.description == "What\nit does."
    text = " ".join(parser.format_help().split())
    assert re.findall(r"--([a-h]) (?:\[\S+ \.\.\.\] )?some text \(default: ([^)]*)\)", text) == [
        *(("a", "0"), ("b", "x y"), ("c", "50 %"))
    ]
    assert text.count("default:") == 4 and "Indented, as written." in text


@pytest.mark.parametrize(
    "kinds, texts",
    [
        (
            (cli.positive_float, cli.positive_int),
            ("0", "-1", "-0.0", "nan", "inf", "-inf", "", "1,5", "ten"),
        ),
        ((cli.count,), ("-1",)),
        ((cli.json_object,), ("{a", "[1]", "null")),
    ],
)
def test_other_values_are_refused(kinds, texts):
    for kind, text in itertools.product(kinds, texts):
        with pytest.raises((argparse.ArgumentTypeError, ValueError)):
            kind(text)


def test_progress_in_a_log_is_plain_lines(caplog):
    caplog.set_level("INFO", logger="millrace")
    with cli.Progress(total=10, unit="hours", label="malta", interval=0) as progress:
        for _ in range(4):
            progress.advance(2.5, errors=1)
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 5
    assert lines[0].startswith("malta: 2.50 of 10 hours (25 %), 0:00:00 left, ")
    assert "10 of 10 hours (100 %)" in lines[-1] and lines[-1].endswith("errors 4")
    assert not any("\r" in line or "\x1b" in line for line in lines)
    # Between two intervals it is silent, but for the end.
    caplog.clear()
    with cli.Progress(total=10, unit="rows", label="x", interval=3600) as progress:
        progress.advance(1)
    assert len(caplog.records) == 1


def test_the_time_that_is_left_is_that_of_what_is_left(monkeypatch):
    progress = cli.Progress(total=10, unit="hours", label="x")
    monkeypatch.setattr(cli.time, "monotonic", lambda: progress.started + 60)
    progress.done = 2.5
    assert "(25 %), 0:03:00 left, 0.0417 hours/s" in progress.line()


@pytest.mark.parametrize("total, done", [(0, 0), (0, 5), (10, 0), (1, 1e-12), (1e12, 1), (5, 7)])
def test_progress_copes_with_odd_totals(total, done):
    progress = cli.Progress(total, "hours", "x")
    progress.advance(done)
    assert progress.line().startswith("x: ")


def test_counts_and_objects_of_a_command_line():
    assert cli.count("0") == 0 and cli.json_object('{"a": [1]}') == {"a": [1]}
    assert (cli.positive_float("1e-3"), cli.positive_int("7")) == (0.001, 7)


def test_an_interrupt_is_one_line(capsys):
    assert "interrupted" in said(capsys, KeyboardInterrupt(), code=130)


@pytest.mark.parametrize("place", ["a step", "a read", "a checkpoint", "a file"])
def test_a_killed_loader_worker_is_one_line_wherever_torch_notices(capsys, place):
    """torch raises it at any statement; a half written checkpoint then adds an error of its own."""
    killed = RuntimeError("DataLoader worker (pid 71) is killed by signal: Killed. ")
    error = killed
    if place == "a read":
        error = RuntimeError("DataLoader worker (pid(s) 71) exited unexpectedly")
        error.__cause__ = killed
    elif place == "a checkpoint":
        error = RuntimeError("[enforce fail at inline_container.cc:672]")
        error.__context__ = killed
    elif place == "a file":
        error = MillraceError("cannot be written", "state.pt", "Free space")
        error.__cause__ = killed
    assert "ERROR a loader worker (pid 71) was killed by SIGKILL. " in said(capsys, error)


def test_a_loader_worker_that_dies_while_a_line_is_logged_ends_the_step(capsys):
    """Python runs torch's signal handler inside `logging`, which goes on after other errors."""

    class Interrupted:
        def __str__(self) -> str:
            raise RuntimeError("DataLoader worker (pid 71) is killed by signal: Killed. ")

    @cli.step(argparse.ArgumentParser)
    def main(args: argparse.Namespace) -> None:
        cli.log.info("step %s", Interrupted())

    assert main([]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "ERROR a loader worker (pid 71) was killed by SIGKILL. " in line


@pytest.mark.parametrize(
    "end, words",
    [
        ("(pid 71) is killed by signal: Killed", "was killed by SIGKILL. Probably memory"),
        ("(pid 71) is killed by signal: Aborted", "was killed by SIGABRT. A library has crashed"),
        (
            "(pid 71) is killed by signal: Segmentation fault",
            "was killed by SIGSEGV. A library has crashed",
        ),
        ("(pid 71) is killed by signal: Bus error", "was killed by SIGBUS. Probably memory"),
        ("(pid(s) 71) exited unexpectedly", "ended unexpectedly. Probably memory"),
        (
            "(pid 71) exited unexpectedly with exit code 3",
            "ended unexpectedly with exit code 3. Probably memory",
        ),
    ],
)
def test_the_end_of_a_loader_worker_is_said_with_what_to_do(capsys, end, words):
    text = said(capsys, RuntimeError(f"DataLoader worker {end}. Details"))
    assert f"ERROR a loader worker (pid 71) {words}" in text
    assert "goes on from the last checkpoint" in text
