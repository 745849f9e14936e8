"""refit simulate with other links, slow ranks and an error, as a user runs it."""

import unittest

from refit_cli import TINY, CliTest


class WhatIf(CliTest):
    def setUp(self):
        super().setUp()
        self.path, self.summary = self.plan(*TINY)

    def refit_s(self, *options):
        return self.json("simulate", self.path, "--cost", "nominal", *options)["predicted_s"]

    def test_slower_and_faster(self):
        planned = self.refit_s()
        self.assertGreater(self.refit_s("--set", "nic=100Gbps"), planned)
        self.assertLess(self.refit_s("--set", "nic=800Gbps", "--set", "nvlink=900GB/s"), planned)
        self.assertGreater(self.refit_s("--straggler", "rank=4,x=0.1", "--straggler", "rank=0,x=0.1"), planned)
        self.assertAlmostEqual(self.refit_s("--error", "0.1%"), planned, delta=0.1 * planned)

    def test_says_what_it_assumed(self):
        done = self.run_program("simulate", "--set", "nic=800Gbps", "--straggler", "rank=4,x=0.5", self.path)
        self.assertIn("nic=800Gbps, rank 4 at 0.5 of its speed", done.stdout)
        self.assertIn("as planned", done.stdout)
        report = self.json("simulate", self.path, "--set", "nic=800Gbps", "--error", "1%")
        self.assertEqual((report["set"], report["stragglers"], report["error"]), (["nic=800Gbps"], [], 0.01))

    def test_link_down(self):
        done = self.run_program("simulate", self.path, "--set", "nic=down", code=1)
        self.assertRegex(done.stderr, r"^refit: rank \d+ to \d+, channel \d+, step \d+: needs link n0\.nic\d\.out, which is down\n$")

    def test_errors(self):
        for option, words in (
            (["--set", "nic"], ["--set", "nic"]),
            (["--set", "nic=fast"], ["--set nic=fast", "fast"]),
            (["--set", "nodes[9].nic=down"], ["nodes[9]", "9"]),
            (["--set", "spine=1GB/s"], ["spine", "dgx-h100"]),
            (["--straggler", "17"], ["--straggler", "17"]),
            (["--straggler", "rank=99,x=0.5"], ["99"]),
            (["--straggler", "rank=1,x=0.5", "--straggler", "rank=1,x=0.5"], ["rank 1"]),
            (["--error", "0.1"], ["--error", "0.1"]),
            (["--error", "100%"], ["--error", "100%"]),
            (["--error", "-1%"], ["--error"]),
        ):
            with self.subTest(option=option):
                done = self.run_program("simulate", self.path, *option, code=2)
                self.assertEqual(len(done.stderr.strip().splitlines()), 1, done.stderr)
                for word in words:
                    self.assertIn(word, done.stderr)


if __name__ == "__main__":
    unittest.main()
