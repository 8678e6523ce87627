"""torchrun for a cluster: the ranks get stop signals and time to save, the exit code for a requeue
survives, the rank to blame is named, nodes of a Slurm job meet.

`python -m millrace.common.training.launch [flags of torchrun] -m <step> [flags of the step]`. Plain
torchrun works as well, but turns every code into 1, gives its ranks 30 s after SIGTERM, and dies of
SIGUSR1 unless told to handle it. With `--log-dir` each rank has a log there, and rank 0's lines
come here too.

With `--nodes N` as the first flag, inside of a Slurm job: srun starts one launcher on each of N
nodes, and a node that is lost is named. Launchers that srun has started (`srun --nodes 2
--ntasks-per-node 1 python -m …`) meet at the first of their nodes. All nodes see the same files.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import time
import uuid
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from millrace.common import processes
from millrace.common.cli import log, log_to_stderr
from millrace.common.errors import MillraceError
from millrace.common.stopping import REQUEUE_EXIT_CODE, STOP_SIGNALS, Requeue
from millrace.common.training.ranks import LOOPBACK, job_port, listen

# One launcher a node, with all CPUs of the job there. If one ends badly, srun ends the others,
# which might not notice for long.
SRUN = (
    "srun --nodes={0} --ntasks={0} --ntasks-per-node=1 --kill-on-bad-exit=1 --cpu-bind=none"
    " --input=none"
)
_MEETING_SECONDS = 600
# A checkpoint of two billion parameters is 25 GB, which a shared folder may take so long to write.
_SAVE_SECONDS = 300
_NODE = re.compile(r"node (\S+) \(.*?\): (ranks .*) of \d+$")
_LOST = re.compile(
    r"srun: error: (?:Node failure on (\S+)|(\S+): tasks? \S+: (?:Killed|Aborted|Segmentation))"
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run torchrun's command line; 0, REQUEUE_EXIT_CODE if the ranks stopped in order, 1 if one
    failed."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    processes.take_training_environment()
    try:
        if arguments[:1] == ["--nodes"]:
            nodes, *others = arguments[1:] or [""]
            if not nodes.isdecimal():
                raise MillraceError("--nodes without a number", remedy="Give --nodes 2")
            return launch_nodes(int(nodes), others)
        return launch_ranks(arguments)
    except MillraceError as error:
        log.error("%s", error)
        return 1


def launch_nodes(nodes: int, arguments: list[str]) -> int:
    """Start a launcher with these arguments on each of `nodes` nodes of this Slurm job; name a lost
    node."""
    if "SLURM_JOB_ID" not in os.environ:
        remedy = (
            "Submit it with sbatch --nodes, as `snakemake --profile slurm` does, or take one node"
        )
        raise MillraceError(f"--nodes {nodes} needs a Slurm job", remedy=remedy)
    command = [*SRUN.format(nodes).split(), sys.executable, "-m", __spec__.name, *arguments]
    ranks = {}
    lost = ""
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, errors="replace") as srun:
        before = {
            number: signal.signal(number, lambda n, _: srun.send_signal(n))
            for number in STOP_SIGNALS
        }
        assert srun.stderr is not None  # it is a pipe
        for line in srun.stderr:
            sys.stderr.write(line)
            sys.stderr.flush()
            if match := _NODE.search(line.strip()):
                ranks[match[1]] = match[2]
            elif (match := _LOST.search(line)) and not lost:
                lost = match[1] or match[2]
                # Into Slurm's log of the job too: the step's own is lost when the job starts again.
                print(f"node {lost} was lost", flush=True)
    for number, handler in before.items():
        signal.signal(number, handler)
    if lost:
        remedy = "the same command goes on from the last checkpoint"
        log.error("failed: node %s (%s) was lost; %s", lost, ranks.get(lost, "no rank yet"), remedy)
        return 1
    if srun.returncode in (0, REQUEUE_EXIT_CODE):
        return srun.returncode
    return 1


def launch_ranks(arguments: list[str]) -> int:
    """Start the ranks of this node with torchrun, and wait for them."""
    from torch.distributed import run
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.elastic.rendezvous.registry import handler_registry
    from torch.distributed.launcher.api import elastic_launch

    # Its lines about a rank that failed; the last one here says the same.
    logging.getLogger("torch.distributed.elastic.multiprocessing.api").setLevel(logging.CRITICAL)
    args = run.parse_args(arguments)
    meeting = _meeting(args)
    # Left to the handlers below: torchrun's would end the ranks after `shutdown_timeout`.
    args.signals_to_handle = "SIGINT,SIGHUP,SIGQUIT"
    signals: list[int] = []

    def forward(number: int, frame: object) -> None:
        signals.append(number)
        children = processes.children(os.getpid())
        if not children:
            raise Requeue  # the ranks have not started yet: other nodes are waited for
        for child in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, number)

    before = {number: signal.signal(number, forward) for number in STOP_SIGNALS}
    try:
        config, command, rest = run.config_from_args(args)
        config.rdzv_backend = backend = f"millrace-{uuid.uuid4()}"
        handler_registry.register(backend, _rendezvous(backend, meeting, args.node_rank))
        if args.log_dir:
            config.logs_specs = _log_per_rank(args.log_dir)
            # Lines without a prefix.
            config.role = ""
            config.log_line_prefix_template = "${role_name}"
        patience = getattr(args, "shutdown_timeout", None)  # torch 2.11 has no such flag
        if patience is None:
            patience = _SAVE_SECONDS
        with _patient(patience):
            elastic_launch(config, command)(*rest)
    except ChildFailedError as error:
        return _code_of(error.failures, bool(signals), args.log_dir, meeting.node)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return 0


def _code_of(
    failures: Mapping[int, Any], was_signalled: bool, log_dir: str | None, node: str
) -> int:
    """The exit code of a node whose ranks ended with another one than 0; say why."""
    codes = {rank: failure.exitcode for rank, failure in failures.items()}
    # torchrun ends the others once the first one has left, so a rank that had saved may die of
    # SIGTERM; and so does one that was still being started.
    in_order = {REQUEUE_EXIT_CODE, *(-number for number in STOP_SIGNALS)}
    is_in_order = in_order.issuperset(codes.values())
    if is_in_order and (was_signalled or REQUEUE_EXIT_CODE in codes.values()):
        text = "the ranks have stopped in order; exit code %d asks for a requeue"
        log.info(text, REQUEUE_EXIT_CODE)
        return REQUEUE_EXIT_CODE

    ended = causes_first(failures)
    parts = [f"rank {rank}: {end_in_words(codes[rank])}" for rank in ended]
    if log_dir:
        text = Path(log_dir, f"rank-{ended[0]}.log").read_text(errors="replace")
        last_line = text.strip().rpartition("\n")[2]
        parts[0] += f" ({last_line})"
    log.error("failed%s: %s", node and f" on node {node}", ", ".join(parts))
    return 1


@contextlib.contextmanager
def _patient(seconds: int) -> Iterator[None]:
    """Let torchrun wait so long for ranks that it ends, because another one failed, before it
    kills.

    A rank that is saving must not be cut short. torchrun's own 30 s are fixed for this case: its
    `shutdown_timeout` counts only where it was sent a signal.
    """
    from torch.distributed.elastic.multiprocessing.api import PContext

    close = PContext.close

    def close_patiently(self: PContext, death_sig: Any = None, timeout: int = 0) -> None:
        close(self, death_sig, max(timeout, seconds))

    PContext.close = close_patiently
    try:
        yield
    finally:
        PContext.close = close


def causes_first(failures: Mapping[int, Any]) -> list[int]:
    """The ranks that failed: those that ended first, and of one moment the likelier cause.

    That is what was killed, then what failed (perhaps for losing a killed one), and last what
    torchrun has ended. NCCL's watchdog aborts a rank long after another one was lost.
    """

    def order(rank: int) -> tuple[int, bool, bool, int]:
        failure = failures[rank]
        was_ended = failure.exitcode == -signal.SIGTERM
        return failure.timestamp, was_ended, failure.exitcode >= 0, rank

    return sorted(failures, key=order)


def end_in_words(code: int) -> str:
    """How a rank has ended, by its exit code; below 0: by a signal."""
    if code >= 0:
        return f"exit code {code}"
    return f"signal {signal.Signals(-code).name}"


class _Meeting(NamedTuple):
    """Where the launchers of a run meet: on the first node, which listens there."""

    address: str = LOOPBACK
    port: int = 0  # 0: any free one
    node: str = ""  # this node's name in messages, if srun has started a launcher on each


def _meeting(args: Namespace) -> _Meeting:
    """Say where torchrun's launchers meet, and set how many there are.

    Raises MillraceError if the command line says so: the ways of torchrun listen on all interfaces,
    and c10d and etcd unpickle what comes over the network.
    """
    from torch.distributed import run

    port = run.get_args_parser().get_default("master_port")  # 29500 in torch 2.11, None in 2.13
    is_chosen = args.rdzv_backend != "static" or args.rdzv_endpoint or args.master_port != port
    if is_chosen or args.nnodes not in ("1", "1:1"):
        problem = "where ranks meet, and on how many nodes, is not for flags of torchrun to say"
        remedy = "Leave them out; on several nodes start the launchers with --nodes or srun"
        raise MillraceError(problem, remedy=remedy)
    nodes = int(os.environ.get("SLURM_STEP_NUM_NODES", 1))
    if int(os.environ.get("SLURM_STEP_NUM_TASKS", nodes)) != nodes:
        # Each would train the same run, alone or in the way of the others.
        remedy = (
            "Start them with srun --ntasks-per-node 1; --nproc-per-node says how many ranks each"
            " starts"
        )
        raise MillraceError("srun has started several launchers on a node", remedy=remedy)
    if args.standalone or nodes == 1:
        return _Meeting()
    return _meeting_in_slurm(args, nodes)


def _meeting_in_slurm(args: Namespace, nodes: int) -> _Meeting:
    """The first of the nodes on which srun has started a launcher each."""
    listing = ["scontrol", "--oneliner", "show", "node", os.environ["SLURM_STEP_NODELIST"]]
    text = subprocess.run(listing, capture_output=True, text=True, check=True).stdout
    index = int(os.environ["SLURM_NODEID"])
    args.nnodes = str(nodes)
    args.node_rank = index

    count = int(args.nproc_per_node)
    node = os.environ["SLURMD_NODENAME"]
    first = index * count
    ranks = f"{first}-{first + count - 1} of {nodes * count}"
    log.info("node %s (%s): ranks %s", node, socket.gethostname(), ranks)
    address = re.search(r"NodeAddr=(\S+)", text)
    if address is None:
        remedy = "Ask for the address of the node: scontrol show node"
        raise MillraceError("Slurm knows no address of the first node", remedy=remedy)
    port = job_port(int(os.environ["SLURM_JOB_ID"]), int(os.environ["SLURM_STEP_ID"]))
    return _Meeting(address[1], port, node)


def _rendezvous(backend: str, meeting: _Meeting, node_rank: int) -> Callable[[Any], Any]:
    """torchrun's static rendezvous, but its store listens at the meeting's address alone.

    torch's own store listens on all interfaces, without a password, and waits for the other
    launchers where no signal ends it.
    """
    from torch.distributed import TCPStore
    from torch.distributed.elastic.rendezvous.static_tcp_rendezvous import StaticTCPRendezvous

    listener = listen(meeting.address, meeting.port) if node_rank == 0 else None
    port = listener.getsockname()[1] if listener else meeting.port

    class Rendezvous(StaticTCPRendezvous):
        _store: TCPStore | None

        def get_backend(self) -> str:
            return backend

        def next_rendezvous(self) -> Any:
            if self._store is None:
                self._store = self._joined()
            return super().next_rendezvous()

        def _joined(self) -> TCPStore:
            """The store, once the launchers of all nodes are there."""
            if listener is None:
                _wait_for_nodes(lambda: _is_listened_to(self.master_addr, self.master_port))
            is_first = listener is not None
            place = (self.master_addr, self.master_port, self.world_size, is_first, self.timeout)
            store = TCPStore(
                *place,
                wait_for_workers=False,
                multi_tenant=True,
                master_listen_fd=listener.detach() if listener else None,
            )
            store.add("launchers", 1)
            _wait_for_nodes(lambda: store.add("launchers", 0) >= self.world_size)
            return store

    return lambda params: Rendezvous(
        meeting.address, port, node_rank, params.max_nodes, params.run_id, _MEETING_SECONDS
    )


def _wait_for_nodes(are_there: Callable[[], bool]) -> None:
    """Wait here, so that a signal is heard. Raises MillraceError after `_MEETING_SECONDS`."""
    until = time.monotonic() + _MEETING_SECONDS
    while not are_there():
        if time.monotonic() > until:
            problem = f"the launchers of the other nodes have not come in {_MEETING_SECONDS} s"
            raise MillraceError(problem, remedy="See what they say: scontrol show step")
        time.sleep(0.1)


def _is_listened_to(address: str, port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection((address, port), timeout=5):
        return True
    return False


def _log_per_rank(folder: str) -> Any:
    """torchrun's choice of logs: `folder`/rank-N.log of all ranks, and rank 0's lines on our stderr
    too."""
    from torch.distributed.elastic.multiprocessing.api import DefaultLogsSpecs

    class RankLogs(DefaultLogsSpecs):
        def reify(self, envs: dict[int, dict[str, str]]) -> Any:
            logs = {}
            shown = {}
            for local, env in envs.items():
                logs[local] = f"{folder}/rank-{env['RANK']}.log"
                if env["RANK"] == "0":
                    shown[local] = logs[local]
            specs = super().reify(envs)
            return replace(specs, stderrs=logs, tee_stdouts={}, tee_stderrs=shown)

    Path(folder).mkdir(parents=True, exist_ok=True)
    return RankLogs(log_dir=os.devnull)


if __name__ == "__main__":
    log_to_stderr()
    raise SystemExit(main())
