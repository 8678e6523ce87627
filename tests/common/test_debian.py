"""Packages fetched with the real apt-get and dpkg, without changing anything of the machine's."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from millrace.common import debian
from millrace.common.errors import MillraceError
from tests.refusals import refused

PACKAGE = "asterisk-core-sounds-en"  # 23 kB


def need(is_there: object, what: object) -> None:
    if not is_there:
        (pytest.fail if os.environ.get("MILLRACE_CI") else pytest.skip)(f"missing: {what}")


def _apt_state() -> dict[Path, int]:
    roots = (Path("/var/lib/apt"), Path("/var/cache/apt"))
    return {path: path.stat().st_mtime_ns for root in roots for path in (root, *root.rglob("*"))}


@pytest.mark.long
@pytest.mark.debian
def test_fetch_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, folder = _apt_state(), tmp_path / "with space"
    try:
        unpacked = debian.fetch([PACKAGE], folder)[PACKAGE]
    except MillraceError as error:
        need(False, error)
    assert _apt_state() == before
    assert (unpacked / f"usr/share/doc/{PACKAGE}/core-sounds-en.txt.gz").is_file()
    # Nothing but the archive and its files stays.
    archive = next(folder.glob("*.deb"))
    assert sorted(path.name for path in folder.iterdir()) == sorted([unpacked.name, archive.name])
    assert debian.version(unpacked) == archive.name.split("_")[1]
    monkeypatch.setenv("PATH", str(tmp_path))
    assert debian.fetch([PACKAGE], folder) == {PACKAGE: unpacked}


@pytest.mark.long
@pytest.mark.debian
def test_unknown_package_names_itself(tmp_path: Path) -> None:
    need(shutil.which("apt-get") and shutil.which("dpkg"), "apt-get and dpkg")
    with refused(r"apt-get .*no-such-package-anywhere"):
        debian.fetch(["no-such-package-anywhere"], tmp_path)
    assert list(tmp_path.iterdir()) == []
    # What was fetched before the one that failed, or was killed, is not fetched again.
    with refused("no-such-package-anywhere"):
        debian.fetch([PACKAGE, "no-such-package-anywhere"], tmp_path)
    assert [path.suffix for path in tmp_path.iterdir()] == [".deb"]


@pytest.mark.debian
def test_damaged_archive_is_not_kept(tmp_path: Path) -> None:
    need(shutil.which("dpkg"), "dpkg")
    (tmp_path / f"{PACKAGE}_1.0-1_all.deb").write_bytes(b"!<arch>\ncut here")
    with refused("dpkg"):
        debian.fetch([PACKAGE], tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_version_with_an_epoch() -> None:
    assert debian.version(Path(f"{PACKAGE}-g722_1%3a2.0-1_all")) == "1:2.0-1"
