"""The local Hub with faults: it fails as planned, route by route, and counts requests and bytes.

    with faulty(folder) as (endpoint, faults):
        faults.plan("commit", 500, 504)  # the first commit fails, the second lands and is answered
        with 504 ...
        assert faults.requests["commit"] == 3

`python -m tests.common.hub.faults FOLDER PORT ROUTE N` dies in the middle of the N-th request of a
route.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator
from pathlib import Path

from aiohttp import web

from millrace.common.hub.server import serve
from millrace.common.hub.store import Repository, Store

WORDS = (
    "create",
    "tree",
    "paths-info",
    "validate-yaml",
    "preupload",
    "batch",
    "commit",
)
WORDS += ("resolve",)
LANDED = 504
Fault = int | str | Callable[[], object]


class Faults:
    """What is to fail, and what has been asked for: `requests` and `bytes` (of bodies) by route."""

    def __init__(self) -> None:
        self.requests: Counter[str] = Counter()
        self.bytes: Counter[str] = Counter()
        self._plans: dict[str, deque[Fault | None]] = defaultdict(deque)

    def plan(self, route: str, *faults: Fault | None) -> None:
        """What the next requests of a route meet: a status (504: after the work is done), `drop` or
        `die` in the middle of the body, a function that is called first, or None."""
        self._plans[route].extend(faults)

    def clear(self) -> None:
        self.requests.clear()
        self.bytes.clear()
        self._plans.clear()

    @web.middleware
    async def answer(self, request: web.Request, handler) -> web.StreamResponse:
        route = route_of(request)
        self.requests[route] += 1
        fault = self._plans[route].popleft() if self._plans[route] else None
        try:
            if fault in ("drop", "die"):
                await request.content.readany()
                if fault == "die":
                    os.kill(os.getpid(), signal.SIGKILL)
                request.transport.abort()
                raise ConnectionResetError
            if callable(fault):
                await asyncio.to_thread(fault)
            if not isinstance(fault, int):
                return await handler(request)
            await (handler(request) if fault == LANDED else request.read())
            # As the Hub says it when it is the number of commits that is too high.
            headers = {"RateLimit": '"api";r=900;t=60'} if fault == 429 else {}
            return web.json_response({"error": f"planned {fault}"}, status=fault, headers=headers)
        finally:
            self.bytes[route] += request.content.total_bytes


def route_of(request: web.Request) -> str:
    """A word for what is asked, such as info, put or one of WORDS."""
    if request.path.startswith("/lfs/"):
        return "put"
    return next((word for word in WORDS if word in request.path.split("/")), "info")


# What the servers of tests want to see.
TOKEN = "hf_thisIsNoToken"


@contextlib.contextmanager
def faulty(folder: Path, port: int = 0) -> Iterator[tuple[str, Faults]]:
    """A server with planned faults in this process: (endpoint, faults)."""
    faults = Faults()
    with serve(folder, TOKEN, port, middlewares=[faults.answer]) as endpoint:
        yield endpoint, faults


def commit_by_another(
    folder: Path, repo: str, path: str, content: bytes = b"foreign"
) -> Callable[[], object]:
    """A fault: somebody else commits a file."""
    change = {"key": "file", "value": {"path": path, "content": base64.b64encode(content)}}
    return lambda: Repository(Store(folder), "datasets", repo).change("by another", None, [change])


@contextlib.contextmanager
def dying(folder: Path, route: str, number: int, pause: float = 4) -> Iterator[str]:
    """A server that is killed in the middle of the N-th request of a route and is back after
    `pause` s."""
    command = [sys.executable, "-m", "tests.common.hub.faults", str(folder)]
    servers = [_start([*command, "0", route, str(number)])]
    endpoint = servers[0].stdout.readline().strip()

    def start_again() -> None:
        if servers[0].wait() == -signal.SIGKILL:
            time.sleep(pause)
            servers.append(_start([*command, endpoint.rpartition(":")[2], route, "0"]))

    thread = threading.Thread(target=start_again)
    thread.start()
    try:
        yield endpoint
    finally:
        # A server that has not died is ended; the thread starts no second one then.
        servers[0].terminate()
        thread.join()
        for server in servers:
            server.terminate()
            server.wait()
            server.stdout.close()


def _start(command: list[str]) -> subprocess.Popen:
    return subprocess.Popen(
        command, cwd=Path(__file__).parents[3], stdout=subprocess.PIPE, text=True
    )


def main(folder: str, port: str, route: str, number: str) -> None:
    with faulty(Path(folder), int(port)) as (endpoint, faults):
        if int(number):
            faults.plan(route, *[None] * (int(number) - 1), "die")
        print(endpoint, flush=True)
        signal.pause()


if __name__ == "__main__":
    main(*sys.argv[1:])
