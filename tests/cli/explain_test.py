"""refit explain, and the tables of refit simulate, as a user runs them."""

import csv
import unittest

from refit_cli import TINY, CliTest


class Explain(CliTest):
    def setUp(self):
        super().setUp()
        self.path, self.summary = self.plan(*TINY)

    def test_the_chain_leads_to_the_end(self):
        report = self.json("explain", self.path)
        self.assertAlmostEqual(report["predicted_s"], self.summary["predicted_s"])
        self.assertEqual(report["bound"]["reason"], self.summary["bound_reason"])
        self.assertEqual(report["bound"]["binding"], self.json("bound", *TINY)["binding"])
        now = 0
        for part in report["chain"]:
            self.assertAlmostEqual(part["from_s"], now, places=12)
            now = part["to_s"]
        self.assertAlmostEqual(now, report["predicted_s"])
        self.assertEqual(report["chain"][0]["cause"], "barrier")
        self.assertAlmostEqual(sum(report["split"].values()), now)
        self.assertIn("NICs twice as fast", [helps["change"] for helps in report["helps"]])

    def test_for_people(self):
        done = self.run_program("explain", self.path)
        for words in ("refit time", "lower bound", "what leads to the end of rank", "rate held by", "fullest links", "what would help"):
            self.assertIn(words, done.stdout)
        self.assertNotIn("what would help", self.run_program("explain", self.path, "--quick").stdout)

    def test_rank_link_and_tensor(self):
        first = self.json("explain", self.path, "--quick")["links"][0]["link"]
        link = self.json("explain", self.path, "--quick", "--link", first)
        self.assertEqual(link["target"], f"the last byte over {first}")
        self.assertIn("idle", link["links"][0])
        self.assertIn(f"over {first}", self.run_program("explain", self.path, "--quick", "--link", first).stdout)
        rank = self.json("explain", self.path, "--quick", "--rank", "5")
        self.assertEqual(rank["target"], "the end of rank 5")
        tensor = self.json("explain", self.path, "--quick", "--tensor", "model.embed_tokens.weight")
        self.assertEqual(tensor["target"], "the last byte of model.embed_tokens.weight")
        self.assertEqual(tensor["chain"][-1]["part"], "wire")

    def test_on_another_fabric(self):
        nominal = self.json("simulate", self.path, "--cost", "nominal")["predicted_s"]
        report = self.json("explain", self.path, "--quick", "--set", "nic=50Gbps", "--cost", "nominal")
        self.assertGreater(report["predicted_s"], nominal)
        self.assertEqual(report["cost"], "nominal")

    def test_errors(self):
        for option, word in ((["--rank", "99"], "99"), (["--link", "n0.nope"], "n0.nope"), (["--tensor", "nope"], "nope"),
                             (["--rank", "1", "--link", "n0.nic0.out"], "--rank"), (["--rows", "0"], "--rows")):
            with self.subTest(option=option):
                done = self.run_program("explain", self.path, *option, code=2)
                self.assertEqual(len(done.stderr.strip().splitlines()), 1, done.stderr)
                self.assertIn(word, done.stderr)

    def test_tables(self):
        files = {name: self.folder / f"{name}.csv" for name in ("timeline", "links", "ranks")}
        report = self.json("simulate", self.path, *(f"--{name}={path}" for name, path in files.items()))
        rows = {name: list(csv.DictReader(path.read_text().splitlines())) for name, path in files.items()}
        self.assertEqual(len(rows["timeline"]), self.summary["transfers"])
        for row in rows["timeline"]:
            times = [float(row[key]) for key in ("posted_s", "ready_s", "start_s", "end_s")]
            self.assertEqual(times, sorted(times))
            self.assertGreaterEqual((times[3] - times[2]) * (1 + 1e-9), float(row["alone_s"]))
        self.assertAlmostEqual(max(float(row["end_s"]) for row in rows["ranks"]), report["predicted_s"])
        self.assertEqual(sum(int(row["bytes_out"]) for row in rows["ranks"]), self.summary["bytes_total"])
        self.assertEqual(rows["links"][0]["link"], report["bottleneck"])
        self.assertAlmostEqual(float(rows["links"][0]["use"]), report["bottleneck_use"])


if __name__ == "__main__":
    unittest.main()
