"""The `hub` section of a lane's config as flags of its steps; every parse runs it, so nothing heavy."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any


def flags(section: Mapping[str, Any], *names: str) -> str:
    """Keys of the section as flags, quoted for the shell."""
    return " ".join(f"--{name.replace('_', '-')} {shlex.quote(str(section[name]))}" for name in names)


def place(section: Mapping[str, Any], server_dir: str) -> str:
    """Which repository on which Hub."""
    public = "" if section["private"] else " --public"
    return f"{flags(section, 'endpoint', 'repo')}{public} --server-dir {server_dir}"
