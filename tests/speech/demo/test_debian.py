"""Packages fetched with the real apt-get and dpkg, without changing anything of the machine's."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from millrace.common.errors import MillraceError
from millrace.speech.demo import debian

PACKAGE = "asterisk-core-sounds-en"  # 23 kB


def _missing(problem: str) -> None:
    (pytest.fail if os.environ.get("MILLRACE_CI") else pytest.skip)(problem)


def _need(*tools: str) -> None:
    if not all(map(shutil.which, tools)):
        _missing(f"{tools} missing")


def _fetch(package: str, folder: Path) -> Path:
    try:
        return debian.fetch([package], folder)[package]
    except MillraceError as error:
        _missing(str(error))


def _apt_state() -> dict[str, int]:
    paths = [
        path for root in ("/var/lib/apt", "/var/cache/apt") for path in (Path(root), *Path(root).rglob("*"))
    ]
    return {str(path): path.stat().st_mtime_ns for path in paths}


@pytest.mark.debian
def test_fetch_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _need("apt-get", "dpkg")
    before = _apt_state()
    folder = tmp_path / "with space"
    unpacked = _fetch(PACKAGE, folder)
    assert _apt_state() == before
    assert (unpacked / f"usr/share/doc/{PACKAGE}/core-sounds-en.txt.gz").is_file()
    # Nothing but the archive and its files stays.
    archive = next(folder.glob("*.deb"))
    assert sorted(path.name for path in folder.iterdir()) == sorted([unpacked.name, archive.name])
    assert debian.version(folder, PACKAGE) == archive.name.split("_")[1]
    monkeypatch.setenv("PATH", str(tmp_path))
    assert debian.fetch([PACKAGE], folder) == {PACKAGE: unpacked}


@pytest.mark.debian
def test_unknown_package_names_itself(tmp_path: Path) -> None:
    _need("apt-get", "dpkg")
    with pytest.raises(MillraceError, match=r"apt-get .*no-such-package-anywhere"):
        debian.fetch(["no-such-package-anywhere"], tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.debian
def test_damaged_archive_is_not_kept(tmp_path: Path) -> None:
    _need("dpkg")
    archive = tmp_path / f"{PACKAGE}_1.0-1_all.deb"
    archive.write_bytes(b"!<arch>\ncut here")
    with pytest.raises(MillraceError, match="dpkg"):
        debian.fetch([PACKAGE], tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_version_of_what_was_never_fetched(tmp_path: Path) -> None:
    (tmp_path / f"{PACKAGE}-g722_1%3a2.0-1_all.deb").touch()
    assert debian.version(tmp_path, f"{PACKAGE}-g722") == "1:2.0-1"
    with pytest.raises(MillraceError, match=PACKAGE):
        debian.version(tmp_path, PACKAGE)
