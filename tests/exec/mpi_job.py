"""A job of refit-exec under Open MPI whose ranks can be killed: what mpi_test.py and ./dev emulated share."""

import dataclasses
import os
import pathlib
import random
import re
import signal
import subprocess
import threading
import time

MPIRUN = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none"]
# Open MPI kills the survivors of a dead rank, unless told not to: here they have to end by themselves.
RECOVERY = ["-mca", "orte_enable_recovery", "1"]
STARTED = "a rehearsal"  # rank 0 says so once all ranks have agreed


class Job:
    """`words` is a whole mpirun command but for the program, `program` what every rank runs."""

    def __init__(self, words: list[str], program: list[str]):
        # The shell stays to say with which status, and when, the program ended.
        script = '"$@"; echo "rank $OMPI_COMM_WORLD_RANK exit $?" >&2'
        self.process = subprocess.Popen([*words, "sh", "-c", script, "sh", *program], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                        text=True, start_new_session=True)
        self.out, self.lines = "", []  # lines of stderr with the time of each
        self._readers = [threading.Thread(target=self._read_out), threading.Thread(target=self._read_err)]
        for reader in self._readers:
            reader.start()

    def _read_out(self) -> None:
        self.out = self.process.stdout.read()

    def _read_err(self) -> None:
        for line in self.process.stderr:
            self.lines.append((time.monotonic(), line.rstrip()))

    def wait_for(self, condition, timeout_s: float) -> bool:
        end = time.monotonic() + timeout_s
        while time.monotonic() < end:
            if condition():
                return True
            time.sleep(0.01)
        return False

    def said(self, text: str) -> bool:
        return any(text in line for _, line in list(self.lines))

    def ranks(self) -> dict[int, int]:
        """Process of each rank that runs."""
        found = {}
        for folder in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                if (folder / "comm").read_text().strip() != "refit-exec" or not self._is_ours(int(folder.name)):
                    continue
                environment = (folder / "environ").read_bytes().split(b"\0")
                rank = next(word for word in environment if word.startswith(b"OMPI_COMM_WORLD_RANK="))
                found[int(rank.split(b"=")[1])] = int(folder.name)
            except (OSError, StopIteration):
                continue
        return found

    def _is_ours(self, pid: int) -> bool:
        while pid > 1:
            if pid == self.process.pid:
                return True
            pid = int(re.search(r"^PPid:\s*(\d+)", pathlib.Path(f"/proc/{pid}/status").read_text(), re.M).group(1))
        return False

    def memory_kib(self) -> list[int] | None:
        """Resident memory of each rank that runs; None when one has just ended."""
        try:
            texts = [pathlib.Path(f"/proc/{pid}/status").read_text() for pid in self.ranks().values()]
            return [int(re.search(r"^VmRSS:\s*(\d+)", text, re.M).group(1)) for text in texts]
        except (OSError, AttributeError):
            return None

    def ended(self) -> dict[int, tuple[int, float]]:
        """Status of the ranks that have ended, and when."""
        found = {}
        for when, line in list(self.lines):
            match = re.fullmatch(r"rank (\d+) exit (\d+)", line)
            if match:
                found[int(match.group(1))] = (int(match.group(2)), when)
        return found

    def stop(self) -> None:
        """Ends what is left of it."""
        for pid in self.ranks().values():
            os.kill(pid, signal.SIGKILL)
        try:
            self.process.wait(timeout=1)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        for reader in self._readers:
            reader.join()
        self.process.stdout.close()
        self.process.stderr.close()


@dataclasses.dataclass
class Trial:
    victim: int
    how: str
    slowest_s: float  # until the last survivor had ended
    fault: str        # "" when all is as it should be


def trial(words: list[str], program: list[str], ranks: int, timeout_s: float, draw: random.Random, how: signal.Signals) -> Trial:
    """Kills or stops one rank while refits run, and watches the others."""
    job = Job(words, [*program, "--timeout", f"{timeout_s}s"])
    victim = draw.randrange(ranks)
    try:
        if not job.wait_for(lambda: job.said(STARTED) and len(job.ranks()) == ranks, 60):
            return Trial(victim, how.name, 0, f"has not started: {job.lines[-3:]}")
        time.sleep(draw.uniform(0.1, 1.0))
        struck = time.monotonic()
        os.kill(job.ranks()[victim], how)
        survivors = set(range(ranks)) - {victim}
        job.wait_for(lambda: survivors <= job.ended().keys(), timeout_s + 10)
        ended = job.ended()
        missing = survivors - ended.keys()
        if missing:
            return Trial(victim, how.name, float("inf"), f"ranks {sorted(missing)} have not ended")
        slowest = max(ended[rank][1] for rank in survivors) - struck
    finally:
        job.stop()
    faults = [f"rank {rank} exits with 0" for rank in survivors if ended[rank][0] == 0]
    told = [line for _, line in job.lines if line.startswith("refit-exec: ") and re.search(rf"\brank {victim}\b", line)]
    if len(told) < len(survivors):
        faults.append(f"{len(told)} of {len(survivors)} survivors name rank {victim}")
    if job.out:
        faults.append(f"success was reported: {job.out!r}")
    if slowest > timeout_s + 2:
        faults.append(f"the last survivor ended after {slowest:.1f} s")
    return Trial(victim, how.name, slowest, "; ".join(faults))
