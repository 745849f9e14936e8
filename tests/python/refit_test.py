"""The Python package as installed: `./dev python`. The oracle is the command line, for the same inputs."""

import json
import os
import pathlib
import re
import subprocess
import tempfile
import unittest

import refit

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
JOB = {"model": "qwen3-0.6b", "train": "megatron:tp=4,pp=2", "gen": "vllm:tp=8", "fabric": "dgx-h100"}


def command_line(*arguments):
    done = subprocess.run([f"{os.environ['REFIT_BIN']}/refit", *map(str, arguments)], capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


def flags(job):
    return [word for key, value in job.items() for word in (f"--{key}", value)]


class Package(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def test_plan_is_that_of_the_command_line(self):
        plan = refit.plan(**JOB, staging="64MiB")
        _, out, _ = command_line("plan", *flags(JOB), "--staging", "64MiB", "-o", self.folder / "a.plan", "--json")
        theirs = json.loads(out)
        for key in ("digest", "predicted_s", "lower_bound_s", "bound_reason", "gap", "transfers", "bytes_total", "classes", "demand_bytes"):
            self.assertEqual(getattr(plan.summary, key), theirs[key], key)
        self.assertLessEqual(refit.plan(**JOB, max_peers=2).summary.max_peers, 2)
        self.assertEqual(refit.plan(**JOB, deadline="1e6s").summary.predicted_s, refit.plan(**JOB).summary.predicted_s)
        with self.assertRaisesRegex(refit.InputError, "deadline"):
            refit.plan(**JOB, deadline="soon")
        with self.assertRaisesRegex(refit.InputError, "--max-peers"):
            refit.plan(**JOB, strategy="direct", max_peers=1)
        plan.save(self.folder / "b.plan")
        self.assertEqual((self.folder / "a.plan").read_bytes(), (self.folder / "b.plan").read_bytes())

    def test_loaded_plan_knows_what_the_file_tells(self):
        plan = refit.plan(**JOB)
        plan.save(self.folder / "a.plan")
        loaded = refit.Plan.load(self.folder / "a.plan")
        self.assertEqual(loaded.summary.digest, plan.summary.digest)
        self.assertEqual(loaded.summary.transfers, plan.summary.transfers)
        self.assertIsNone(loaded.summary.search_s)
        self.assertEqual(loaded.check(), [])
        self.assertEqual(json.loads(loaded.export("json"))["digest"], plan.summary.digest)

    def test_simulate(self):
        plan = refit.plan(**JOB)
        self.assertEqual(plan.simulate().predicted_s, plan.summary.predicted_s)
        faster = plan.simulate(set=["nic=800Gbps"])
        self.assertLess(faster.predicted_s, plan.summary.predicted_s)
        self.assertGreater(plan.simulate(stragglers=["rank=3,x=0.5"]).predicted_s, plan.summary.predicted_s)
        self.assertEqual(plan.simulate(cost="nominal").cost, "nominal")

    def test_compare_and_bound(self):
        table = refit.compare(**JOB, strategies=["refit", "direct"])
        self.assertEqual([row.strategy for row in table.rows], ["refit", "direct"])
        self.assertEqual(table.lower_bound_s, refit.bound(**JOB).lower_bound_s)
        self.assertLessEqual(table["refit"].predicted_s, table["direct"].predicted_s)

    def test_errors_have_the_text_of_the_command_line(self):
        for change in ({"model": "no-such"}, {"train": "megatron:tp=3"}, {"gen": "vllm:tp=x"}, {"fabric": "nowhere"}):
            job = {**JOB, **change}
            code, _, err = command_line("plan", *flags(job))
            self.assertEqual(code, 2)
            with self.assertRaises(refit.InputError) as raised:
                refit.plan(**job)
            self.assertEqual(f"refit: {raised.exception}", err.strip().splitlines()[-1])
        with self.assertRaises(refit.InputError):
            refit.Plan.load(self.folder / "none.plan")
        with self.assertRaises(ValueError):
            refit.plan(**JOB, unknown="guess")

    def test_documented_examples_run(self):
        os.chdir(self.folder)
        self.addCleanup(os.chdir, ROOT)
        examples = [(page, text) for page in ("README.md", "docs/python.md") for text in re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.S)]
        self.assertEqual(len(examples), 3)
        for page, text in examples:
            exec(compile(text, page, "exec"), {})


if __name__ == "__main__":
    unittest.main()
