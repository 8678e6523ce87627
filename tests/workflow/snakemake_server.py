"""Snakemake without its imports: a process that has loaded them once, and forks for each call.

    python -m tests.workflow.snakemake_server

reads a call a line, runs it in a child of its own and answers with its exit code. Imports are most
of what a dry run of a small workflow takes. Of Millrace itself nothing is loaded before.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import NamedTuple

# All that Snakemake, its plugins and we load at each start, by what brings it. Half of the time is
# the Slurm plugin's.
PRELOADED = (
    "snakemake.cli",
    "snakemake.profiles",
    "snakemake.report.html_reporter",
    "snakemake.storage",
    "snakemake_executor_plugin_slurm",
    "snakemake_logger_plugin_rich",
    "jsonschema",
    "smart_open",
)


class Call(NamedTuple):
    """A call of `python -m MODULE`, which is snakemake or uses it."""

    module: str
    arguments: list[str]
    folder: str
    environment: dict[str, str]
    stdout: str  # paths of files, or of a terminal
    stderr: str


class Server:
    """The process, seen from the one that calls; it ends with it."""

    def __init__(self) -> None:
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            cwd="/",
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def call(self, call: Call) -> int:
        """Run the module; return its exit code."""
        print(json.dumps(call), file=self._process.stdin, flush=True)
        return int(self._process.stdout.readline())

    def end(self) -> None:
        """End the process as soon as its call is over."""
        self._process.stdin.close()
        self._process.wait()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


_servers: list[Server] = []


def _exit_code(call: Call) -> int:
    """Run a call by this process's server."""
    if not _servers:
        _servers.append(Server())
        atexit.register(lambda: [server.end() for server in _servers])
    try:
        return _servers[0].call(call)
    except BaseException:
        # A test's time limit: a late answer must not be taken for the next call's.
        _servers.pop().kill()
        raise


def call(
    arguments: list[str], folder: Path, environment: dict[str, str], module: str = "snakemake"
) -> subprocess.CompletedProcess[str]:
    """Run `python -m snakemake`, or another module, with these arguments."""
    with tempfile.TemporaryDirectory(prefix="snakemake-") as scratch:
        stdout, stderr = Path(scratch, "stdout"), Path(scratch, "stderr")
        call = Call(module, arguments, str(folder), environment, str(stdout), str(stderr))
        code = _exit_code(call)
        return subprocess.CompletedProcess(arguments, code, stdout.read_text(), stderr.read_text())


def call_on_terminal(
    arguments: list[str], folder: Path, environment: dict[str, str]
) -> tuple[int, str]:
    """Run `python -m snakemake` where it writes to a terminal: exit code and what it wrote."""
    controller, terminal = os.openpty()
    chunks = []

    def read() -> None:
        with contextlib.suppress(OSError):  # nobody has the terminal open any more
            while chunk := os.read(controller, 65536):
                chunks.append(chunk)

    reader = threading.Thread(target=read)
    reader.start()
    name = os.ttyname(terminal)
    try:
        code = _exit_code(Call("snakemake", arguments, str(folder), environment, name, name))
    finally:
        os.close(terminal)
        reader.join()
        os.close(controller)
    return code, b"".join(chunks).decode()


def run_in_child(call: Call, packages: list[str]) -> None:
    """Become the process that `python -m MODULE` would be, up to its imports."""
    for number, path in ((1, call.stdout), (2, call.stderr)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOCTTY), number)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.environ.clear()
    os.environ.update(call.environment)
    os.chdir(call.folder)
    paths = call.environment.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:] = [call.folder, *filter(None, paths), *packages]
    importlib.invalidate_caches()

    sys.argv = [call.module, *call.arguments]
    runpy.run_module(call.module, run_name="__main__", alter_sys=True)


def serve() -> None:
    """Answer calls until the one who asks is gone."""
    packages = sys.path[1:]
    for module in PRELOADED:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()
    for line in sys.stdin:
        call = Call(*json.loads(line))
        child = os.fork()
        if child == 0:
            gc.unfreeze()
            run_in_child(call, packages)
            return
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    serve()
