"""A real Slurm of several virtual nodes with fake GPUs on this machine: no root, no systemd, no
accounting.

    python -m tests.slurm.cluster snakemake --profile slurm

runs a command (default: a shell) with a cluster of its own, which ends with it. Needs slurm-wlm and
munge.
"""

from __future__ import annotations

import ctypes
import getpass
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

NODES, CPUS, MEMORY_MB, GPUS = 3, 4, 64000, 2
# The nodes share this host and claim more than it has (config_overrides). Memory is polled, which
# needs no cgroups: a job over its limit is killed, and FAILED. `squeue` shows ended jobs for
# MinJobAge seconds.
SLURM_CONF = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
SlurmctldPort={ports[0]}
AuthInfo=socket={folder}/munge.socket,cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
ProctrackType=proctrack/pgid
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=task=1
JobAcctGatherParams=OverMemoryKill,UsePss
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SchedulerParameters=bf_interval=2,batch_sched_delay=1,sched_interval=2
SlurmdParameters=config_overrides
MpiDefault=none
GresTypes=gpu
ReturnToService=2
MinJobAge=7200
KillWait=5
PartitionName=main Nodes=n[1-{nodes}] Default=YES
PartitionName=gpu Nodes=n{nodes}
"""
NODE = (
    "NodeName=n{number} NodeHostname={host} NodeAddr=127.0.0.1 Port={port}"
    " CPUs={cpus} RealMemory={memory} {gres}\n"
)
# Slurm sets CUDA_VISIBLE_DEVICES only where a GPU's file is a character device.
GPU = "NodeName=n{number} Name=gpu Type=fake Flags=nvidia_gpu_env File={device}\n"
DEVICES = ("/dev/null", "/dev/zero")
# Snakemake takes SLURM_CONF away from the srun inside a job.
SRUN = '#!/bin/sh\nSLURM_CONF={conf} exec {srun} "$@"\n'


def configure(folder: Path) -> dict[str, str]:
    """Write the cluster's files; return the environment in which Slurm's commands use it."""
    host, listening = (
        socket.gethostname().partition(".")[0],
        [socket.socket() for _ in range(NODES + 1)],
    )
    for each in listening:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in listening]
    for each in listening:
        each.close()
    text = SLURM_CONF.format(
        folder=folder, host=host, user=getpass.getuser(), ports=ports, nodes=NODES
    )
    for number in range(1, NODES + 1):
        gres = f"Gres=gpu:fake:{GPUS}" if number == NODES else ""
        text += NODE.format(
            number=number, host=host, port=ports[number], cpus=CPUS, memory=MEMORY_MB, gres=gres
        )
        (folder / f"spool-n{number}").mkdir(parents=True)
    (folder / "slurm.conf").write_text(text)
    (folder / "gres.conf").write_text(
        "".join(GPU.format(number=NODES, device=each) for each in DEVICES[:GPUS])
    )
    (folder / "state").mkdir()
    (folder / "munge.key").write_bytes(os.urandom(128))
    (folder / "munge.key").chmod(0o400)
    (folder / "bin").mkdir()
    (folder / "bin/srun").write_text(
        SRUN.format(conf=folder / "slurm.conf", srun=shutil.which("srun"))
    )
    (folder / "bin/srun").chmod(0o755)
    path = os.pathsep.join([str(folder / "bin"), os.environ["PATH"], "/usr/sbin"])
    return {**os.environ, "PATH": path, "SLURM_CONF": str(folder / "slurm.conf")}


def die_with_parent() -> None:
    """In a new daemon: a killed test must not leave it behind."""
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG


@contextmanager
def daemon(command: str, log: Path, environment: dict[str, str]) -> Iterator[None]:
    """A daemon while the block lasts, in a session of its own: Ctrl-C is for the command that uses
    it."""
    with open(log, "ab") as file:
        process = subprocess.Popen(
            shlex.split(command),
            env=environment,
            stdout=file,
            stderr=file,
            start_new_session=True,
            preexec_fn=die_with_parent,
        )
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()


@contextmanager
def cluster(folder: Path) -> Iterator[dict[str, str]]:
    """A cluster below `folder`, which is made; gives the environment for commands that use it."""
    folder.mkdir(mode=0o755)
    environment = configure(folder)
    names = (
        "key-file=munge.key",
        "socket=munge.socket",
        "pid-file=munge.pid",
        "seed-file=munge.seed",
    )
    munge = " ".join(f"--{name.replace('=', f'={folder}/')}" for name in names)
    commands = {"munged": f"munged --foreground --force {munge}", "slurmctld": "slurmctld -D"}
    commands |= {f"slurmd-n{number}": f"slurmd -D -N n{number}" for number in range(1, NODES + 1)}
    with ExitStack() as daemons:
        for name, command in commands.items():
            daemons.enter_context(daemon(command, folder / f"{name}.log", environment))
            if name == "munged":
                wait(lambda: (folder / "munge.socket").exists(), folder)
        idle = ["sinfo", "--noheader", "--Node", "--partition=main", "--states=idle"]
        wait(lambda: len(output(idle, environment).splitlines()) == NODES, folder)
        try:
            yield environment
        finally:
            # The steps of a job outlive the daemon that started them.
            subprocess.run(["scancel", "--user", getpass.getuser()], env=environment)
            wait(lambda: not output(["squeue", "--noheader"], environment), folder)


def output(command: list[str], environment: dict[str, str]) -> str:
    return subprocess.run(command, env=environment, capture_output=True, text=True).stdout


def wait(condition, folder: Path, seconds: float = 60) -> None:
    """Wait until `condition()`; the daemons' logs say why it does not come."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            tails = [
                f"{log.name}: {log.read_text()[-1000:]}" for log in sorted(folder.glob("*.log"))
            ]
            raise TimeoutError(
                f"the test cluster did not get ready within {seconds:g} s\n" + "\n".join(tails)
            )
        time.sleep(0.1)


if __name__ == "__main__":
    with (
        tempfile.TemporaryDirectory(prefix="slurm-") as scratch,
        cluster(Path(scratch) / "c") as variables,
    ):
        command = sys.argv[1:] or [os.environ.get("SHELL", "bash")]
        raise SystemExit(subprocess.run(command, env=variables).returncode)
