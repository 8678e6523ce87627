"""Runs probes in processes of their own: in time, within memory, and without leaving anything
behind.

The audit's own process starts a guard and writes to it what is to be audited, a line of JSON each;
the guard answers with a line of results. The guard has loaded torch, and forks a process for each
audit, which loads the libraries of the loader; from it one process a rank is forked for each probe.
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import itertools
import json
import multiprocessing
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from millrace.audit.runner import linux, trace
from millrace.audit.runner.probes import PROBES, Probe, Result, Seen
from millrace.audit.runner.target import Options, Rank, Target
from millrace.common import processes
from millrace.common.errors import MillraceError
from millrace.common.machine.memory import kernel_bytes

POLL = 0.02
NO_TORCH = "no torch: "  # begins the only answer of a guard that cannot import it
# Characters. Below lie two folders and the sockets of workers, whose paths have 107 at most.
_LONGEST_TMPDIR = 40
LEAVING = 5.0  # seconds for the guard to clean up after the time of an audit


class Guard:
    """Audits with one start of torch: `with Guard() as guard: guard.audit(options, ["look",
    "epochs"])`. Modules are looked for where the caller finds them.

    Raises MillraceError if torch cannot be imported.
    """

    def __enter__(self) -> Guard:
        self._scratch = tempfile.mkdtemp(prefix="audit-", dir=_short_folder())
        environment = {
            **os.environ,
            "PYTHONDONTWRITEBYTECODE": "1",
            "MILLRACE_AUDIT": self._scratch,
        }
        # Not as a module of its own: spawned workers would import it as their main module.
        code = f"import sys; sys.path[:] = {sys.path!r}; from {__name__} import main; main()"
        # In a session of its own, as it clears up after signals to the caller's group.
        self._process = subprocess.Popen(
            [sys.executable, "-c", code],
            env=environment,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()  # it clears up, also in mid-audit
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(LEAVING)
        self._process.kill()
        with contextlib.suppress(BrokenPipeError), self._process:
            pass  # its streams are closed
        shutil.rmtree(self._scratch, ignore_errors=True)

    def audit(self, options: Options, probes: list[str]) -> dict[str, Result]:
        """Run the probes on the loader that the options name; each has its result, "skipped"
        included."""
        stdin = self._process.stdin
        stdout = self._process.stdout
        assert stdin is not None  # both are pipes
        assert stdout is not None
        answer = ""
        with contextlib.suppress(BrokenPipeError):
            stdin.write(json.dumps({"options": vars(options), "probes": probes}) + "\n")
            stdin.flush()
            answer = stdout.readline()
        if answer.startswith(NO_TORCH):
            problem = f"torch cannot be imported: {answer.removeprefix(NO_TORCH).strip()}"
            raise MillraceError(
                problem, sys.executable, "Start the audit with the Python that trains"
            )
        if not answer:
            error = {"text": f"the guard ended with code {self._process.wait()}"}
            return {name: Result("died", [], error, 0.0) for name in probes}
        return {name: Result(**result) for name, result in json.loads(answer).items()}


def _short_folder() -> str:
    """TMPDIR; /tmp where the paths of sockets below it would be too long for a worker's batches."""
    folder = tempfile.gettempdir()
    return folder if len(os.fsencode(folder)) <= _LONGEST_TMPDIR else "/tmp"


def main() -> None:
    """The guard itself."""
    processes.adopt_orphans()
    processes.die_with_parent(signal.SIGTERM)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    try:
        import torch.utils.data  # once, for all processes that are forked
    except (ImportError, OSError) as error:  # OSError: a library that torch loads
        print(f"{NO_TORCH}{error}", file=answers, flush=True)
        return
    torch.set_num_threads(1)
    scratch = Path(os.environ["MILLRACE_AUDIT"])
    try:
        for line in sys.stdin:
            if pid := os.fork():
                if os.waitpid(pid, 0)[1]:
                    break
                continue
            processes.adopt_orphans()
            processes.die_with_parent(signal.SIGTERM)
            request = json.loads(line)
            results = _audit(Options(**request["options"]), request["probes"], scratch)
            answers.write(
                json.dumps({name: vars(result) for name, result in results.items()}) + "\n"
            )
            answers.flush()
            os._exit(0)
    finally:
        _clear()
        shutil.rmtree(scratch, ignore_errors=True)


def _audit(options: Options, names: list[str], scratch: Path) -> dict[str, Result]:
    deadline = time.monotonic() + options.timeout
    results: dict[str, Result] = {}
    for name in [each for each in PROBES if each in names]:
        left = deadline - time.monotonic()
        blind = "look" in results and results["look"].status != "ok"
        if blind or left < 1:
            text = "the loader gave no batch" if blind else f"the {options.timeout:g} s are over"
            status = "skipped" if blind else "late"
            results[name] = Result(status, [], {"text": text}, 0.0)
        else:
            seconds = min(left, PROBES[name].share * options.timeout)
            results[name] = _Run(PROBES[name], options, scratch, seconds).result()
            if results[name].status == "hung" and not _stands_still(name, results):
                text = results[name].error["text"].replace("no end", "not done")
                results[name] = replace(results[name], status="late", error={"text": text})
        if name == "look" and results[name].status == "ok":
            _import(**results[name].data[0]["imported"])
    return results


def _stands_still(name: str, results: dict[str, Result]) -> bool:
    """Whether the loader hung in a probe whose time was over; else it, or the probe itself, was
    slow."""
    error = results[name].error
    if error["busy"]:
        return False
    if name == "epochs":
        # Slow samples are no hang.
        seconds = results["look"].data[0]["batch_seconds"]
        return bool(error["where"]) and results[name].seconds >= 4 * seconds
    return name == "look"


def _import(libraries: list[str], environment: dict[str, str]) -> None:
    """Load the libraries that each probe would import anew, which may take seconds in every
    process."""
    before = dict(os.environ)
    os.environ.update(environment)
    with (
        open(os.devnull, "w") as no,
        contextlib.redirect_stdout(no),
        contextlib.redirect_stderr(no),
    ):
        for name in libraries:
            with contextlib.suppress(Exception):
                importlib.import_module(name)
    os.environ.clear()
    os.environ.update(before)


Problem = tuple[str, Seen]  # status and error of a probe that did not end well


def _too_large(pids: list[int], limit: int) -> Problem | None:
    needed = sum(map(linux.anonymous_bytes, pids))
    if needed <= limit:
        return None
    text = f"its processes hold {needed / 2**30:.1f} GiB, more than {limit / 2**30:.1f} GiB"
    return "memory", {"text": text}


class _Run:
    """One probe in all its ranks."""

    def __init__(self, probe: Probe, options: Options, scratch: Path, seconds: float) -> None:
        self.probe = probe
        self.options = options
        self.seconds = seconds
        self.folder = Path(tempfile.mkdtemp(dir=scratch))
        self.deadline = time.monotonic() + seconds
        self.world = options.ranks if probe.ranks else 1
        ranks = range(self.world)
        self.ranks = [Rank(rank, self.world, self.folder, self.deadline) for rank in ranks]

    def result(self) -> Result:
        limit = self.options.memory_mb * 2**20 or min(
            8 * 2**30, kernel_bytes("MemAvailable", "meminfo") // 2
        )
        with socket.create_server(("127.0.0.1", 0)) as listening:
            port = listening.getsockname()[1]
        running = {rank: self._fork(rank, port) for rank in range(self.world)}
        problem = None
        for turn in itertools.count(1):
            below = linux.descendants() if turn % 10 == 0 else []
            problem = _too_large(below, limit) or self._ended(running) or self._overdue(running)
            if problem or not running:
                break
            time.sleep(POLL)
        status, error = problem or ("ok", {})
        answers = map(self._answer, range(self.world))
        data = [answer.get("data", {}) for answer in answers]
        _clear()
        shutil.rmtree(self.folder, ignore_errors=True)
        spent = time.monotonic() - self.deadline + self.seconds
        return Result(status, data, error, round(spent, 2))

    def _ended(self, running: dict[int, int]) -> Problem | None:
        """Forget the ranks that have ended; why the first one did, if it gave no answer: others may
        have waited for it."""
        codes = {}
        for rank, pid in list(running.items()):
            ended, code = os.waitpid(pid, os.WNOHANG)
            if ended:
                del running[rank]
                codes[rank] = code
        failed = [rank for rank in codes if "data" not in self._answer(rank)]
        if not failed:
            return None
        # What a rank raises as another one is gone comes after it.
        first = min(failed, key=self._answered)
        return self._why(first, codes[first])

    def _answered(self, rank: int) -> int:
        """When a rank wrote its answer, in nanoseconds; 0 if it died without one."""
        with contextlib.suppress(FileNotFoundError):
            return os.stat(self.folder / f"{rank}.json").st_mtime_ns
        return 0

    def _overdue(self, running: dict[int, int]) -> Problem | None:
        if not running or time.monotonic() <= self.deadline:
            return None
        return "hung", self._stacks(*min(running.items()))

    def _fork(self, rank: int, port: int) -> int:
        if pid := os.fork():
            return pid
        try:
            self._child(rank, port)
            os._exit(0)
        finally:
            os._exit(1)

    def _child(self, rank: int, port: int) -> None:
        processes.die_with_parent(signal.SIGKILL)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.setsid()
        me = self.ranks[rank]
        log = os.open(me.log_file, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(log, 1)
        os.dup2(log, 2)
        faulthandler.enable(log, all_threads=False)  # says where a segmentation fault arose
        faulthandler.register(signal.SIGUSR1, file=log)  # of all threads: any may get the signal
        tempfile.tempdir = str(self.folder)  # what lies there is removed
        os.environ.update(
            RANK=str(rank),
            LOCAL_RANK=str(rank),
            WORLD_SIZE=str(self.world),
            LOCAL_WORLD_SIZE=str(self.world),
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT=str(port),
            TMPDIR=tempfile.tempdir,
        )
        # Workers of a forkserver, the default on Python 3.14, are forked from one that has loaded
        # torch.
        multiprocessing.set_forkserver_preload(["torch.utils.data"])
        if self.options.start_method:  # also for locks and shared values that a script makes
            multiprocessing.set_start_method(self.options.start_method, force=True)
        try:
            _join_group(me)
            _unseed()
            probe = self.probe.function()
            answer = {"data": probe(Target(self.options), me)}
        except BaseException as error:
            answer = {"error": trace.described(error, me.log())}
        (self.folder / f"{rank}.json").write_text(json.dumps(answer, default=str))

    def _answer(self, rank: int) -> Seen:
        with contextlib.suppress(OSError, ValueError):  # of a rank that died, or is still writing
            return json.loads((self.folder / f"{rank}.json").read_text())
        return {}

    def _why(self, rank: int, code: int) -> Problem:
        if error := self._answer(rank).get("error"):
            return "raised", {**error, "rank": rank}
        if os.WIFSIGNALED(code):
            name = signal.Signals(os.WTERMSIG(code)).name
        else:
            name = f"code {code >> 8}"
        log = self.ranks[rank].log()
        text = f"rank {rank} ended with {name}"
        where = trace.users(trace.frames(log.partition("Fatal Python error")[2]))
        return "died", {"text": text, "where": where, "log": log[-2000:], "rank": rank}

    def _stacks(self, rank: int, pid: int) -> Seen:
        """Where the processes stand that did not end: the workers first, as the others wait for
        them."""
        log = self.ranks[rank].log
        before = log()
        busy = linux.is_busy([pid, *linux.descendants(pid)])
        for each in [*linux.descendants(pid), pid]:
            written = len(log())
            until = time.monotonic() + 1
            with contextlib.suppress(OSError):
                os.kill(
                    each, 0 if linux.is_tracker(each) else signal.SIGUSR1
                )  # it would end a tracker
                os.kill(each, signal.SIGCONT)  # a stopped process says nothing
            while len(log()) == written and time.monotonic() < until:
                time.sleep(POLL)
            time.sleep(0.1)  # for the rest of its stack
        frames = trace.frames(log()[len(before) :])
        # multiprocessing prints why a worker's batch cannot be sent, and goes on.
        unsent = ""
        if "in _feed" in before:
            unsent = f"a batch cannot be sent: {before.splitlines()[-1]}"
        return {
            "text": f"no end after {self.seconds:.0f} s",
            "where": unsent or trace.users(frames),
            "trace": frames[:20],
            "rank": rank,
            "busy": busy,
        }


def _join_group(me: Rank) -> None:
    """A gloo group, as a training script has one; the user's own init_process_group then changes
    nothing."""
    import torch.distributed as dist

    if dist.is_available():
        processes.stay_on_loopback()
        store = dist.FileStore(str(me.scratch / "store"), me.world)
        dist.init_process_group("gloo", store=store, rank=me.rank, world_size=me.world)
        # A rank that is done while another still connects to it would break that connection.
        store.set(f"joined {me.rank}", "")
        store.wait([f"joined {rank}" for rank in range(me.world)])
        dist.init_process_group = lambda *_, **__: None


def _unseed() -> None:
    """Random states as a fresh process has them: those of the guard are the same in all that it
    forks."""
    from millrace.audit.runner.listener import reseed  # with torch

    reseed(secrets.randbits(32))


def _clear() -> None:
    """End all processes below this one; trackers have a second to remove what others left."""
    until = time.monotonic() + 1.0
    below = linux.descendants()
    while below:
        for pid in below:
            if time.monotonic() > until or not linux.is_tracker(pid):
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        below = linux.descendants()
        time.sleep(POLL if below else 0)
