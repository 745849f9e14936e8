"""A fabric of network namespaces on this machine, made from a fabric YAML: a namespace and a host name per
node, joined by a bridge, every port shaped to the NIC's rate in both directions with `tc tbf`."""

import contextlib
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import tempfile

import yaml

SUBNET = "10.213.77"
# A burst has to hold a packet of 64 KB, which TCP hands down in one piece; more would let a step begin
# faster than the link is.
BURST = 80_000
# Clusters for refits have lossless networks with credits per flow. Here a connection may have so many bytes under
# way and ports buffer all that, so that nothing is lost, no queue grows long, and flows share a port evenly. Half
# of it keeps one connection from filling the link while its process waits for a core; with the system's own
# settings (4 MB) small messages queue for 10 ms behind large ones.
WINDOW = 128 * 1024
QUEUE_BYTES = 8 << 20


def run(*words: str) -> str:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{shlex.join(words)}: {done.stderr.strip() or done.returncode}")
    return done.stdout


def parse_rate(text: str) -> float:
    """"400Mbps" in bits per second."""
    number, unit = re.fullmatch(r"([\d.]+)\s*([kMGT]?)bps", text).groups()
    return float(number) * {"": 1, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}[unit]


def why_not() -> str:
    """Why this machine cannot emulate a fabric; "" when it can."""
    if os.geteuid() != 0:
        return "not root: network namespaces and tc need it"
    for program in ("ip", "tc", "mpirun", "unshare"):
        if shutil.which(program) is None:
            return f"no {program}"
    name = f"refit-probe-{os.getpid()}"
    try:
        run("ip", "netns", "add", name)
        try:
            run("ip", "netns", "exec", name, "tc", "qdisc", "add", "dev", "lo", "root", "tbf", "rate", "400mbit", "burst", "80kb", "limit", "1mb")
        finally:
            run("ip", "netns", "del", name)
    except RuntimeError as error:
        return f"no namespaces or no tbf: {error}"
    return ""


class Fabric:
    """Use as a context: what it made is gone afterwards, whatever happened."""

    def __init__(self, path: pathlib.Path):
        description = yaml.safe_load(path.read_text())
        self.name = description["name"]
        self.nodes = description["nodes"]
        self.per_node = description["node"]["gpus"]
        self.rate = parse_rate(description["node"]["nic"])
        self.ranks = self.nodes * self.per_node
        self.prefix = f"refit-{os.getpid()}"
        self.hosts = [f"h{i}" for i in range(self.nodes)]
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="refit-emulated-"))

    def netns(self, host: str) -> str:
        return f"{self.prefix}-{host}"

    def __enter__(self) -> "Fabric":
        try:
            self._build()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _build(self) -> None:
        switch = self.netns("switch")
        run("ip", "netns", "add", switch)
        inside = ("ip", "-n", switch)
        run(*inside, "link", "set", "lo", "up")
        run(*inside, "link", "add", "bridge", "type", "bridge")
        run(*inside, "addr", "add", f"{SUBNET}.254/24", "dev", "bridge")
        run(*inside, "link", "set", "bridge", "up")
        for number, host in enumerate(self.hosts):
            name, port = self.netns(host), f"port{number}"
            run("ip", "netns", "add", name)
            run(*inside, "link", "add", port, "type", "veth", "peer", "name", "nic", "netns", name)
            run(*inside, "link", "set", port, "master", "bridge", "up")
            run("ip", "-n", name, "link", "set", "lo", "up")
            run("ip", "-n", name, "addr", "add", f"{SUBNET}.{number + 1}/24", "dev", "nic")
            run("ip", "-n", name, "link", "set", "nic", "up")
            run("ip", "netns", "exec", name, "sysctl", "-qw", "net.ipv4.tcp_congestion_control=reno",
                f"net.ipv4.tcp_wmem=4096 {WINDOW} {WINDOW}")
            for where, device in ((name, "nic"), (switch, port)):
                run("tc", "-n", where, "qdisc", "add", "dev", device, "root", "tbf", "rate", f"{self.rate:.0f}bit",
                    "burst", str(BURST), "limit", str(QUEUE_BYTES))
        self.agent = self.folder / "agent"
        # Open MPI takes equal host names for one node, so that every host has its own.
        self.agent.write_text(
            "#!/bin/sh\n"
            'host=$1; shift\n'
            f'exec ip netns exec {self.prefix}-$host unshare --uts sh -c "hostname $host; exec $*"\n')
        self.agent.chmod(0o755)

    def __exit__(self, *_) -> None:
        for name in [*self.hosts, "switch"]:
            for pid in self.processes(name):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            subprocess.run(["ip", "netns", "del", self.netns(name)], capture_output=True, check=False)
        shutil.rmtree(self.folder, ignore_errors=True)

    def processes(self, host: str) -> list[int]:
        done = subprocess.run(["ip", "netns", "pids", self.netns(host)], capture_output=True, text=True, check=False)
        return [int(word) for word in done.stdout.split()]

    def mpirun(self, ranks: int, *words: str, recovery: bool = False) -> list[str]:
        """The command that runs a program with rank r on host r / per_node. `recovery`: Open MPI leaves the survivors of a rank
        alone, and may then wait for good for what is left."""
        hosts = ",".join(f"{host}:{self.per_node}" for host in self.hosts)
        options = {
            "plm_rsh_agent": str(self.agent),
            "pml": "ob1",
            "btl": "tcp,vader,self",  # vader: shared memory, which stands for NVLink
            "btl_tcp_if_include": f"{SUBNET}.0/24",
            "oob_tcp_if_include": f"{SUBNET}.0/24",
            "btl_tcp_eager_limit": "4096",
            "btl_tcp_rndv_eager_limit": "1024",  # else 64 KB of a message travel before its receiver is ready
            "mpi_yield_when_idle": "1",
        }
        if recovery:
            options["orte_enable_recovery"] = "1"
        mca = [word for key, value in options.items() for word in ("-mca", key, value)]
        return ["ip", "netns", "exec", self.netns("switch"), "nice", "-n", "-15", "mpirun", "--allow-run-as-root", "--oversubscribe",
                "--bind-to", "none", "--host", hosts, "-np", str(ranks), *mca, *words]


class CpuIdle:
    """What part of all cores was idle in a context, and what part ran others' background work (nice)."""

    def __enter__(self) -> "CpuIdle":
        self._before = self._read()
        return self

    def __exit__(self, *_) -> None:
        after = self._read()
        spent = [b - a for a, b in zip(self._before, after)]
        self.idle = (spent[3] + spent[4]) / max(sum(spent), 1)
        self.niced = spent[1] / max(sum(spent), 1)

    @staticmethod
    def _read() -> list[int]:
        return [int(word) for word in pathlib.Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
