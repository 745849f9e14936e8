"""Runs every command of README.md and docs/*.md: lines that start with "$ " in console blocks. Commands of ./dev are not run again from inside a test."""

import os
import re
import shutil
import subprocess
import unittest

from refit_cli import BIN, ROOT, CliTest


def commands(path):
    for block in re.findall(r"```console\n(.*?)```", path.read_text(), re.S):
        for line in re.sub(r"\\\n\s*", "", block).splitlines():
            if line.startswith("$ "):
                yield line[2:]


class Readme(CliTest):
    def test_commands_run(self):
        environment = dict(os.environ, PATH=f"{BIN}:{os.environ['PATH']}", OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
                           OMPI_MCA_rmaps_base_oversubscribe="1", OMPI_MCA_mpi_yield_when_idle="1")
        ran = 0
        for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
            for command in commands(path):
                if command.startswith("./dev"):
                    continue
                with self.subTest(command=command):
                    self.assertRegex(command, r"^(mpirun .*)?refit(-exec)? ")
                    if command.startswith("mpirun") and shutil.which("mpirun") is None:
                        self.skipTest("skipped: no mpirun")
                    done = subprocess.run(["bash", "-c", command], cwd=self.folder, env=environment, capture_output=True, text=True)
                    self.assertEqual(done.returncode, 0, done.stderr)
                    ran += 1
        self.assertGreater(ran, 5)


if __name__ == "__main__":
    unittest.main()
