"""refit calibrate, as a user runs it."""

import unittest

from refit_cli import TINY, CliTest


def log(test, hosts, per_host, seconds):
    """What nccl-tests prints, of made-up times."""
    lines = [f"# Collective test starting: {test}_perf", "# nThread 1 nGpus 1 minBytes 1024 maxBytes 1073741824", "#", "# Using devices"]
    lines += [f"#  Rank {rank:2} Group  0 Pid {rank:6} on     node{rank // per_host} device {rank % per_host:2} [0x1b] NVIDIA H100"
              for rank in range(hosts * per_host)]
    lines += ["#", "#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong"]
    for power in range(10, 31, 2):
        us = seconds(2**power) * 1e6
        rate = 2**power / us * 1e-3
        lines.append(f"{2**power:12} {2**power // 4:12} float none -1 {us:9.2f} {rate:8.2f} {rate:8.2f} 0 {us:9.2f} {rate:8.2f} {rate:8.2f} N/A")
    return "\n".join(lines + ["# Out of bounds values : 0 OK", "# Avg bus bandwidth    : 1.0", ""])


class Calibrate(CliTest):
    def setUp(self):
        super().setUp()
        self.nvlink, self.net = self.folder / "a.log", self.folder / "b.log"
        self.nvlink.write_text(log("sendrecv", 1, 8, lambda size: 10.6e-6 + size / 300e9))
        self.net.write_text(log("alltoall", 2, 8, lambda size: 42e-6 + size / 2 / 45e9))
        self.output = self.folder / "mine.yaml"

    def calibrate(self, *arguments, **keywords):
        return self.run_program("calibrate", *arguments, "--fabric", "dgx-h100", "-o", self.output, **keywords)

    def test_the_model_is_used(self):
        report = self.json("calibrate", self.nvlink, self.net, "--fabric", "dgx-h100", "-o", self.output, "--name", "mine")
        self.assertAlmostEqual(report["nvlink"]["efficiency"], 300 / 450, places=3)
        self.assertAlmostEqual(report["net"]["efficiency"], 45 / 50, places=3)
        self.assertAlmostEqual(report["nvlink"]["start_s"], 10e-6, places=7)
        self.assertAlmostEqual(report["net"]["start_s"], 40e-6, places=7)
        self.assertEqual(report["outliers"], [])
        path, summary = self.plan(*TINY)
        self.assertEqual(self.json("simulate", path, "--cost", self.output)["cost"], "mine")

    def test_for_people(self):
        done = self.calibrate(self.nvlink, self.net)
        for words in ("66.7 % of the nominal rate (fitted)", "rms residual", "kept from nccl-h100", "mine.yaml"):
            self.assertIn(words, done.stdout)

    def test_errors(self):
        broken = self.folder / "sendrecv.log"
        broken.write_text(self.nvlink.read_text().replace("  4096  ", "  4096 7 "))
        ours = self.folder / "run.json"
        ours.write_text('{"steps": []}')
        for arguments, words in (([broken], ["sendrecv.log:", "14 columns"]), ([ours], ["run.json", "--plan"]),
                                 ([self.folder / "none.log"], ["none.log"]), ([self.nvlink, "--base", "nope"], ["nope"])):
            with self.subTest(arguments=arguments):
                done = self.calibrate(*arguments, code=2)
                self.assertEqual(len(done.stderr.strip().splitlines()), 1, done.stderr)
                for word in words:
                    self.assertIn(word, done.stderr)
                self.assertFalse(self.output.exists())


if __name__ == "__main__":
    unittest.main()
