"""What the command line tests share: where the programs are, and how to run them."""

import json
import os
import pathlib
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
BIN = pathlib.Path(os.environ["REFIT_BIN"])
DATA = ROOT / "tests/cli/data"
TINY = ["--model", str(DATA / "tiny-moe.json"), "--train", "megatron:ep=2,pp=2", "--gen", "vllm:tp=4,dp=2", "--fabric", "dgx-h100"]


class CliTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def run_program(self, *arguments, code=0, program="refit", **keywords):
        done = subprocess.run([BIN / program, *map(str, arguments)], capture_output=True, text=True, **keywords)
        self.assertEqual(done.returncode, code, f"{arguments}\nstdout: {done.stdout}\nstderr: {done.stderr}")
        return done

    def json(self, *arguments, **keywords):
        return json.loads(self.run_program(*arguments, "--json", **keywords).stdout)

    def plan(self, *arguments, name="a.plan"):
        path = self.folder / name
        summary = self.json("plan", *arguments, "-o", path)
        return path, summary
