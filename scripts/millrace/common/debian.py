"""Debian packages fetched and unpacked without root, and without touching the machine's own apt
state."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import unquote

from millrace.common.cli import Progress
from millrace.common.errors import MillraceError

OPTIONS = [
    f"Acquire::{option}" for option in ("Retries=2", "http::Timeout=20", "https::Timeout=20")
]
# Root would drop to another user, who may not write into the private folder.
OPTIONS += ["Acquire::Languages=none", "APT::Sandbox::User="]
# Hooks of the machine's configuration (desktop notices, caches) have no business in a private run.
PRIVATE_CONF = "#clear APT::Update;\n"


def fetch(packages: Sequence[str], folder: Path, remedy: str = "") -> dict[str, Path]:
    """Return the folder with the unpacked files of each package; download only what `folder` lacks.

    Uses the machine's own package sources, with lists and cache in a private folder that is removed
    afterwards. Raises MillraceError with this `remedy` if apt-get or dpkg is missing, or the
    download fails.
    """
    folder = folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        if missing := [name for name in packages if _archive(folder, name) is None]:
            _download(missing, folder)
        return {name: _unpacked(folder, name) for name in packages}
    except MillraceError as error:
        raise MillraceError(error.problem, error.where, remedy) from None


def version(unpacked: Path) -> str:
    """The version of a package, from the name of the folder of its files:
    <package>_<version>_all."""
    return unquote(unpacked.name.split("_")[1])


def _archive(folder: Path, package: str) -> Path | None:
    return max(folder.glob(f"{package}_*.deb"), default=None)


def _download(packages: Sequence[str], folder: Path) -> None:
    with tempfile.TemporaryDirectory(prefix=".apt-", dir=folder) as private:
        root = Path(private)
        for name in ("lists/partial", "cache/archives/partial", "new"):
            (root / name).mkdir(parents=True)
        (root / "apt.conf").write_text(PRIVATE_CONF, encoding="utf-8")
        apt = ["apt-get", "-q", "-y", "-c", str(root / "apt.conf")]
        for option in (f"Dir::State::Lists={root}/lists", f"Dir::Cache={root}/cache", *OPTIONS):
            apt += ["-o", option]
        _run("apt-get update", [*apt, "update"], root / "new")
        with Progress(len(packages), "packages", "download") as progress:
            for name in packages:
                _run("apt-get download", [*apt, "download", name], root / "new")
                # At once, so that a run that is killed has only one to fetch again.
                for archive in (root / "new").glob("*.deb"):
                    os.replace(archive, folder / archive.name)
                progress.advance(1)


def _unpacked(folder: Path, package: str) -> Path:
    archive = _archive(folder, package)
    assert archive is not None  # `fetch` has downloaded what was not there
    target = folder / archive.name.removesuffix(".deb")
    if not target.is_dir():
        if shutil.which("dpkg") is None:
            raise MillraceError("dpkg is not on this machine")
        with tempfile.TemporaryDirectory(prefix=".unpack-", dir=folder) as private:
            try:
                _run("dpkg -x", ["dpkg", "-x", str(archive), f"{private}/files"], folder)
            except MillraceError:
                archive.unlink()  # damaged: the next run downloads it again
                raise
            try:
                os.replace(f"{private}/files", target)
            except OSError:
                if not target.is_dir():  # by another process, meanwhile
                    raise
    return target


def _run(label: str, command: Sequence[str], cwd: Path) -> None:
    # HOME: dpkg and apt look for a configuration there, which another user's home may refuse to
    # show.
    environment = {
        **os.environ,
        "LC_ALL": "C",
        "HOME": str(cwd),
        "DEBIAN_FRONTEND": "noninteractive",
    }
    try:
        result = subprocess.run(
            command, cwd=cwd, env=environment, capture_output=True, stdin=subprocess.DEVNULL
        )
    except FileNotFoundError:
        raise MillraceError(f"{command[0]} is not on this machine") from None
    if result.returncode:
        lines = result.stderr.decode("utf-8", "replace").strip().splitlines() or ["no message"]
        errors = [line for line in lines if re.match(r"E:|dpkg(-deb)?: error", line)] or lines
        raise MillraceError(" / ".join(errors[-3:]), label)
