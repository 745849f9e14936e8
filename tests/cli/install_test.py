"""Installs into a folder of its own and uses what is there, away from the sources."""

import os
import subprocess
import unittest

from refit_cli import CliTest

BUILD = os.environ["REFIT_BUILD"]


class Install(CliTest):
    def test_installed_program_finds_its_data(self):
        prefix = self.folder / "usr"
        subprocess.run(["cmake", "--install", BUILD, "--prefix", prefix], check=True, capture_output=True)
        for name in ("share/man/man1/refit.1", "share/man/man1/refit-exec.1", "share/bash-completion/completions/refit", "bin/refit-exec"):
            self.assertTrue((prefix / name).stat().st_size > 0, name)
        moved = self.folder / "elsewhere"  # nothing remembers where it was installed
        prefix.rename(moved)
        done = subprocess.run([moved / "bin/refit", "bound", "--model", "qwen3-0.6b", "--train", "megatron:tp=2", "--gen", "vllm:tp=2", "--fabric", "dgx-h100"],
                              cwd=self.folder, capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        found = subprocess.run([moved / "bin/refit", "bound", "--model", "no-such-model", "--train", "megatron:tp=2", "--gen", "vllm:tp=2", "--fabric", "dgx-h100"],
                               cwd=self.folder, capture_output=True, text=True)
        self.assertEqual(found.returncode, 2)
        (moved / "share/refit/models/mine.yaml").write_text((moved / "share/refit/models/qwen3-0.6b.yaml").read_text())
        named = subprocess.run([moved / "bin/refit", "bound", "--model", "mine", "--train", "megatron:tp=2", "--gen", "vllm:tp=2", "--fabric", "dgx-h100"],
                               cwd=self.folder, capture_output=True, text=True)
        self.assertEqual(named.returncode, 0, named.stderr)


if __name__ == "__main__":
    unittest.main()
