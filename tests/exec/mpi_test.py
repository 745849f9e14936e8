#!/usr/bin/env python3
"""The mpi backend on loopback: refit-exec under mpirun, as a user runs it."""

import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests/cli"))
from mpi_job import MPIRUN, RECOVERY, Job, trial  # noqa: E402
from refit_cli import BIN, DATA, CliTest  # noqa: E402

EXEC = str(BIN / "refit-exec")
SMALL = ["--model", str(DATA / "tiny-moe.json"), "--train", "megatron:ep=2", "--gen", "vllm:tp=2", "--fabric", "emulated-4x4"]
LARGE = ["--model", str(ROOT / "tests/emulated/models/dense-50mb.json"), "--train", "megatron:tp=2", "--gen", "vllm:tp=2",
         "--fabric", "emulated-4x4"]


class Mpi(CliTest):
    def mpirun(self, *words, code=0):
        done = subprocess.run([*MPIRUN, *map(str, words)], capture_output=True, text=True, timeout=120)
        self.assertEqual(done.returncode, code, f"{words}\nstdout: {done.stdout}\nstderr: {done.stderr}")
        return done

    def refused(self, *words, message):
        done = self.mpirun(*words, code=2)
        self.assertEqual(done.stdout, "")
        self.assertIn(message, done.stderr)

    def test_every_strategy_brings_every_byte(self):
        job = ["--model", str(DATA / "tiny-moe.json"), "--train", "megatron:ep=2,pp=2", "--gen", "vllm:tp=2,engines=2", "--fabric", "emulated-4x4"]
        rows = self.json("compare", *job)["rows"]
        for strategy in [row["strategy"] for row in rows if "predicted_s" in row][:4]:
            with self.subTest(strategy=strategy):
                plan, summary = self.plan(*job, "--strategy", strategy)
                report = self.folder / "r.json"
                out = self.mpirun("-np", summary["ranks"], EXEC, plan, "--backend", "mpi", "--verify", "--iterations", "2", "--json", report).stdout
                self.assertIn("every byte equal", out)
                measured = json.loads(report.read_text())
                self.assertEqual(measured["digest"], summary["digest"])
                self.assertEqual(measured["context"]["backend"], "mpi")
                self.assertEqual(sum(peer["bytes"] for peer in measured["peers"]), summary["bytes_total"])
                host = self.folder / "h.json"
                self.run_program(plan, "--iterations", "1", "--json", host, program="refit-exec")
                expected = json.loads(host.read_text())
                strip = lambda ranks: [[step[:2] + step[4:] for step in rank["steps"]] for rank in ranks]
                self.assertEqual(strip(measured["ranks"]), strip(expected["ranks"]))

    def test_rank_map(self):
        plan, _ = self.plan(*SMALL)
        ranks = self.folder / "map"
        ranks.write_text("3 2  # the train side\n1 0\n")
        self.assertIn("every byte equal", self.mpirun("-np", 4, EXEC, plan, "--backend", "mpi", "--verify", "--rank-map", ranks).stdout)
        for text, message in (("3 2 1", "--rank-map: rank"), ("0 1 2 2", "rank 3: found process 2"), ("0 1 2 9", "rank 3: found process 9"),
                              ("0 1 x 3", "map:1"), ("# none", "no numbers")):
            ranks.write_text(text)
            self.refused("-np", 4, EXEC, plan, "--backend", "mpi", "--rank-map", ranks, message=message)

    def test_disagreement_is_refused(self):
        plan, _ = self.plan(*SMALL)
        other, _ = self.plan(*SMALL, "--strategy", "striped", name="b.plan")
        run = [EXEC, plan, "--backend", "mpi"]
        self.refused("-np", 3, *run, message="processes: found 3, expected 4")
        self.refused("-np", 2, *run, ":", "-np", 2, EXEC, other, "--backend", "mpi", message="digest of rank 2")
        self.refused("-np", 3, *run, ":", "-np", 1, *run, "--verify", message="options of rank 3")
        self.refused("-np", 3, *run, ":", "-np", 1, EXEC, self.folder / "absent", "--backend", "mpi", message="rank 3: ")
        # The plan has ranks 0 and 1 on one node, 2 and 3 on another.
        self.refused("-np", 1, "-x", "REFIT_NODE=a", *run, ":", "-np", 3, "-x", "REFIT_NODE=b", *run, message="node of ranks 0 and 1")

    def test_nodes_that_match(self):
        plan, _ = self.plan(*SMALL)
        run = [EXEC, plan, "--backend", "mpi", "--verify"]
        done = self.mpirun("-np", 2, "-x", "REFIT_NODE=a", *run, ":", "-np", 2, "-x", "REFIT_NODE=b", *run)
        self.assertIn("2 hosts", done.stdout)
        self.assertIn("measured / predicted", done.stdout)
        self.assertNotIn("rehearsal", done.stderr)

    def test_a_wrong_plan_moves_nothing(self):
        plan, _ = self.plan(*SMALL)
        content = bytearray(plan.read_bytes())
        content[-10] ^= 1
        plan.write_bytes(content)
        self.refused("-np", 4, EXEC, plan, "--backend", "mpi", message="damaged")

    def test_memory_stays_flat(self):
        plan, _ = self.plan(*SMALL)
        job = Job([*MPIRUN, "-np", "4"], [EXEC, str(plan), "--backend", "mpi", "--verify", "--iterations", "4000"])
        sizes = []
        try:
            while job.process.poll() is None:
                kib = job.memory_kib()
                if kib is not None and len(kib) == 4:
                    sizes.append(sum(kib))
                time.sleep(0.02)
        finally:
            job.stop()
        self.assertEqual(job.process.returncode, 0, job.lines)
        self.assertIn("every byte equal", job.out)
        self.assertGreater(len(sizes), 8)
        half = len(sizes) // 2
        self.assertLessEqual(max(sizes[half:]), 1.02 * max(sizes[:half]))

    def test_every_survivor_names_the_rank_that_is_gone(self):
        plan, _ = self.plan(*LARGE)
        draw = random.Random(int(os.environ.get("REFIT_TEST_SEED", "1")))
        for number in range(int(os.environ.get("REFIT_TEST_KILLS", "3"))):
            how = signal.SIGKILL if number % 2 == 0 else signal.SIGSTOP
            found = trial([*MPIRUN, *RECOVERY, "-np", "4"], [EXEC, str(plan), "--backend", "mpi", "--iterations", "100000"], 4, 1, draw, how)
            self.assertEqual(found.fault, "", found)


if __name__ == "__main__":
    unittest.main()
