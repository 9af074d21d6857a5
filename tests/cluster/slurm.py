"""A Slurm of four virtual nodes on this machine: real servers, which the fixture starts and stops.

Each node is a separate slurmd with its own name; all four share this machine's host name, files and
shared memory. The servers keep their files in one scratch folder, use free ports, listen only on
the loopback address, and authenticate with a separate munged and key, so they never meet another
Slurm of this machine. Processes of the cluster are identified exactly: servers are children of this
process, and their descendants have the path of this cluster's configuration in their environment.

The machine may be slow: neither the tests nor Slurm consider a server or a job dead because it did
not answer for some seconds. To simulate the death of a node, its processes are killed and Slurm is
informed.
"""

import contextlib
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from launch.slurm_jobs import HOLDING, WAITING

NODES = ("n1", "n2", "n3", "n4")
_PACKAGES = ("slurm-wlm", "munge")
_PROGRAMS = (
    "slurmctld",
    "slurmd",
    "sbatch",
    "squeue",
    "sinfo",
    "scontrol",
    "scancel",
    "srun",
    "munged",
)
# Variables of an MPI or a Slurm that may have started this process.
_FOREIGN_VARIABLES = ("OMPI_", "PMIX_", "PRTE_", "SLURM_", "SBATCH_")
# MPI runs as root, and ranks of different nodes communicate over the loopback device. (The daemons
# of mpirun cannot: their channel refuses that device.)
_MPI = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_btl_tcp_if_include": "lo",
    "UCX_NET_DEVICES": "lo",
}
_PATIENCE_S = 600  # nothing takes this long, even on a busy machine
_LIVE = HOLDING | WAITING | {"SIGNALING"}  # as scontrol shows a job that receives a signal

# The number of CPUs is invented (config_overrides): three ranks fit on a node, whatever this
# machine has. The timeouts allow for slow servers, and the intervals let jobs start soon. A
# requeued job waits until its credential expires.
_CONFIGURATION = """\
ClusterName=fleet
SlurmctldHost=localhost
SlurmctldPort={ports[0]}
SlurmUser=root
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=20
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
ReturnToService=2
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmdSpoolDir={folder}/spool.%n
StateSaveLocation={folder}/state
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
SlurmdParameters=config_overrides
SwitchType=switch/none
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=2,sched_interval=2
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
MailProg=/bin/true
MpiDefault=none
SlurmdTimeout=600
MessageTimeout=60
TCPTimeout=30
BatchStartTimeout=300
UnkillableStepTimeout=300
KillWait=5
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
NodeName=n1 NodeHostname=localhost NodeAddr=127.0.0.1 Port={ports[1]} CPUs=4 RealMemory=1000
NodeName=n2 NodeHostname=localhost NodeAddr=127.0.0.1 Port={ports[2]} CPUs=4 RealMemory=1000
NodeName=n3 NodeHostname=localhost NodeAddr=127.0.0.1 Port={ports[3]} CPUs=4 RealMemory=1000
NodeName=n4 NodeHostname=localhost NodeAddr=127.0.0.1 Port={ports[4]} CPUs=4 RealMemory=1000
PartitionName=low Nodes=ALL Default=YES PriorityTier=1 PreemptMode=REQUEUE GraceTime=5
PartitionName=high Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=10 PreemptMode=OFF
"""


@dataclass(frozen=True)
class EndedJob:
    """A job that has ended: its state according to Slurm, and its output."""

    state: str
    output: str


class Slurm:
    """The cluster: its servers, and commands to them."""

    def __init__(self, folder):
        self.folder = folder
        self.configuration = folder / "slurm.conf"
        plain = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith(_FOREIGN_VARIABLES)
        }
        # Temporary files of jobs. Files of killed jobs could collide with later process ids.
        self._scratch = folder / "tmp"
        self.environment = {
            **plain,
            "SLURM_CONF": str(self.configuration),
            "TMPDIR": str(self._scratch),
            **_MPI,
        }
        self._servers = {}

    # ---- jobs ----

    def submit(self, script, *options, **variables):
        """Submit a batch script with these environment variables; return the id of the job."""
        command = ("sbatch", "--parsable", f"--output={self.folder}/%j.out", *options)
        return self._ask(*command, text=script, **variables).strip()

    def call(self, *command, **variables):
        """Run a command in the cluster's environment and return its output; it must succeed."""
        return self._ask(*command, **variables)

    def state(self, job):
        """Return Slurm's state of a job, such as PENDING, RUNNING or COMPLETED."""
        return re.search(
            r"JobState=(\w+)", self._ask("scontrol", "--oneliner", "show", "job", job)
        )[1]

    def nodes_of(self, job):
        """Return the nodes that a job has or had; its script runs on the first."""
        listed = re.search(
            r" NodeList=(\S+)", self._ask("scontrol", "--oneliner", "show", "job", job)
        )[1]
        return self._ask("scontrol", "show", "hostnames", listed).split()

    def output(self, job):
        """Return the end of a job's output."""
        return _tail(self.folder / f"{job}.out")

    def rank_of(self, job, rank):
        """Return the process id of a rank of a job's launch."""
        pattern = {
            f"SLURM_CONF={self.configuration}",
            f"SLURM_JOB_ID={job}",
            f"OMPI_COMM_WORLD_RANK={rank}",
        }
        return next(pid for pid, variables in environments() if pattern <= variables)

    def wait_for(self, job):
        """Wait for the end of a job and return it; the test fails if the job does not end."""
        self.wait_until(f"job {job} has ended", lambda: self.state(job) not in _LIVE)
        return EndedJob(self.state(job), self.output(job))

    def cancel(self, job):
        """Cancel a job and wait until it is gone."""
        self._ask("scancel", job)
        self.wait_for(job)

    # ---- waiting ----

    def wait_until(self, label, condition, report=lambda: "", seconds=_PATIENCE_S):
        """Wait for a condition; on timeout, fail the test with a report of the cluster.

        Args:
            label: the condition, as a sentence.
            condition: returns True once it holds.
            report: returns more text for the failure.
            seconds: the timeout.
        """
        if not _is_reached(condition, seconds):
            pytest.fail(f"not reached after {seconds} s: {label}\n{report()}\n{self.report()}")

    def report(self):
        """Return the queue, the nodes, and the ends of all logs."""
        commands = (
            ("squeue", "--format=%i %T %r %N %S %j"),
            ("sinfo", "--Node", "--format=%N %T %E"),
        )
        return "\n".join(
            [
                *(f"---- {command[0]}\n{self._try(*command)}" for command in commands),
                *(f"---- {path.name}\n{_tail(path)}" for path in sorted(self.folder.glob("*.out"))),
            ]
        )

    # ---- nodes ----

    def clean(self):
        """Restore the initial state: no jobs and four idle nodes."""
        self.wait_until("no job is left", self._is_empty)
        for node in NODES:
            if node not in self._servers:
                self._start_node(node)
        self.wait_until("all nodes are idle", self._is_idle)
        self._empty_scratch()

    def node_states(self):
        """Return node -> state, such as idle, mixed or down; a star marks a node without answer."""
        lines = self._try(
            "sinfo", "--noheader", "--Node", "--partition=low", "--format=%N %T"
        ).splitlines()
        return dict(line.split() for line in lines)

    def take_down(self, node):
        """Kill a node: its slurmd, its processes and its shared memory; :meth:`clean` restores it.

        Slurm is informed, since it would take a while to notice.
        """
        self._servers[node].kill()
        self._servers.pop(node).wait()
        ranks = self._processes(node)
        files = {file for pid in ranks for file in shared_memory(pid)}
        # The daemons first: they would report the death of the ranks.
        for pid in [*self._step_daemons(ranks), *ranks]:
            _kill(pid)
        for file in files:  # the memory of a real node is lost, too
            Path(file).unlink(missing_ok=True)
        self._ask("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=died")
        self.wait_until(
            f"node {node} is down", lambda: self.node_states().get(node, "").startswith("down")
        )

    def cut_off(self, *nodes):
        """Simulate nodes that lose their network: Slurm marks them down, and their processes stop.

        Slurm does not end the processes; :meth:`clean` restores the nodes. All nodes of a job must
        be
        cut off: on a remaining one, Slurm would wait for the stopped processes.

        Returns:
            The ids of the stopped processes.
        """
        for node in nodes:
            self._servers[node].kill()
            self._servers.pop(node).wait()
        stopped = {pid for node in nodes for pid in self._processes(node)}
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        for pid in self._step_daemons(stopped):
            _kill(pid)
        self._ask("scontrol", "update", f"NodeName={','.join(nodes)}", "State=DOWN", "Reason=lost")
        self.wait_until(
            f"{' and '.join(nodes)} are down",
            lambda: all(self.node_states().get(node, "").startswith("down") for node in nodes),
        )
        return stopped

    # ---- servers ----

    def start(self):
        """Start all servers and wait until the nodes are idle."""
        key = self.folder / "munge.key"
        key.touch(0o600)
        key.write_bytes(secrets.token_bytes(128))
        (self.folder / "state").mkdir()
        self._empty_scratch()
        self.configuration.write_text(
            _CONFIGURATION.format(folder=self.folder, ports=_free_ports(1 + len(NODES)))
        )
        # By default munged refuses to run as root or in a private folder.
        self._start(
            "munged",
            "munged",
            "--foreground",
            "--force",
            f"--key-file={key}",
            *(
                f"--{kind}={self.folder}/munge.{kind.split('-')[0]}"
                for kind in ("socket", "pid-file", "log-file", "seed-file")
            ),
        )
        self.wait_until("munged listens", (self.folder / "munge.socket").exists)
        self._start("slurmctld", "slurmctld", "-D", "-f", str(self.configuration))
        for node in NODES:
            self._start_node(node)
        self.wait_until("all nodes are idle", self._is_idle)

    def stop(self):
        """End all jobs, then the servers, then the remaining processes."""
        if "slurmctld" in self._servers:
            # The servers are ended even if they do not answer.
            with contextlib.suppress(subprocess.TimeoutExpired):
                _is_reached(self._is_empty, 60)
        for server in reversed(self._servers.values()):
            server.terminate()
            try:
                server.wait(60)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()
        for pid in self._processes():
            _kill(pid)

    def _empty_scratch(self):
        shutil.rmtree(self._scratch, ignore_errors=True)
        self._scratch.mkdir(exist_ok=True)

    def _start_node(self, node):
        (self.folder / f"spool.{node}").mkdir(exist_ok=True)
        self._start(node, "slurmd", "-D", "-N", node, "-f", str(self.configuration))

    def _start(self, name, program, *arguments):
        # In a new session, since an interrupt from the terminal ends the tests, which end the
        # servers.
        with open(self.folder / f"{name}.out", "ab") as log:
            self._servers[name] = subprocess.Popen(
                [_find(program), *arguments],
                env=self.environment,
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _is_empty(self):
        """Cancel all jobs and return True if none is left; a job may be requeued in between."""
        self._try("scancel", "--me")
        listed = self._run(("squeue", "--noheader"))
        return listed.returncode == 0 and not listed.stdout.strip()

    def _is_idle(self):
        """Return True if all nodes are idle; resume nodes that Slurm considers down."""
        for name, server in self._servers.items():
            assert server.poll() is None, f"{name} ended:\n{_tail(self.folder / f'{name}.out')}"
        states = self.node_states()
        for node, state in states.items():
            if state.startswith(("down", "drain", "fail")):
                self._try("scontrol", "update", f"NodeName={node}", "State=RESUME")
        return list(states.values()) == ["idle"] * len(NODES)

    def _processes(self, node=None):
        """Return the processes that the servers started, on one node or on all."""
        pattern = {f"SLURM_CONF={self.configuration}"}
        if node:
            pattern.add(f"SLURMD_NODENAME={node}")
        return [pid for pid, variables in environments() if pattern <= variables]

    def _step_daemons(self, pids):
        """Return the slurmstepd parents of processes; their environment does not name the node."""
        own_pids, parents = set(self._processes()), {_parent(pid) for pid in pids}
        return [pid for pid in own_pids & parents if _command(pid).startswith("slurmstepd")]

    # ---- commands ----

    def _ask(self, *command, text=None, **variables):
        done = self._run(command, text, variables)
        assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"
        return done.stdout

    def _try(self, *command):
        return self._run(command).stdout

    def _run(self, command, text=None, variables=None):
        return subprocess.run(
            [_find(command[0]), *command[1:]],
            env={**self.environment, **(variables or {})},
            input=text,
            text=True,
            capture_output=True,
            timeout=_PATIENCE_S,
            check=False,
        )


def environments():
    """Yield the readable processes of this machine with the variables that each started with."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            variables = (folder / "environ").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        if int(folder.name) != os.getpid():
            yield int(folder.name), set(variables)


def shared_memory(pid="self"):
    """Return file -> inode of the files under /dev/shm that a process maps, unlinked or not."""
    lines = [line.split(maxsplit=5) for line in _read(pid, "maps").splitlines()]
    return {
        line[5].removesuffix(" (deleted)"): int(line[4])
        for line in lines
        if len(line) == 6 and line[5].startswith("/dev/shm/")
    }


def _parent(pid):
    match = re.search(r"PPid:\s+(\d+)", _read(pid, "status"))
    return int(match[1]) if match else None


def _command(pid):
    return _read(pid, "cmdline")


def _read(pid, file):
    try:
        return Path(f"/proc/{pid}/{file}").read_text(errors="replace")
    except OSError:  # it has ended
        return ""


def _kill(pid):
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _tail(path):
    return path.read_text(errors="replace")[-5000:] if path.exists() else ""


def _is_reached(condition, seconds):
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.2)
    return True


def _free_ports(count):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [number.getsockname()[1] for number in sockets]
    for number in sockets:
        number.close()
    return ports


# ---- what must be installed ----


def _find(program):
    """Return the path of a program; servers are in folders that may be missing in PATH."""
    return shutil.which(program, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


def _missing():
    return [program for program in _PROGRAMS if _find(program) is None]


def _install():
    """Install missing programs, or skip the test with the reason."""
    if os.geteuid() != 0:
        pytest.skip("a Slurm of virtual nodes needs root")
    if not _missing():
        return
    if _find("apt-get") is None:
        pytest.skip(
            f"{', '.join(_missing())} not found, and without apt-get "
            f"{' and '.join(_PACKAGES)} cannot be installed"
        )
    for command in (["update"], ["install", "-y", "--no-install-recommends", *_PACKAGES]):
        done = subprocess.run(
            # The timeout: another apt-get may be running.
            ["apt-get", "-qq", "-o", "DPkg::Lock::Timeout=300", *command],
            env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=900,
            check=False,
        )
    if _missing():
        pytest.skip(
            f"apt-get could not install {' and '.join(_PACKAGES)}: {done.stderr.strip()[-300:]}"
        )


@pytest.fixture(scope="session")
def slurm():
    """Start four nodes, n1 to n4; jobs of the partition high preempt and requeue those of low."""
    _install()
    # A socket's path has at most 107 letters.
    folder = Path(tempfile.mkdtemp(prefix="fleet-slurm-"))
    cluster = Slurm(folder)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
        shutil.rmtree(folder)
