"""Runs README.md and docs/ (pages.py). README.md and docs/*.md share a folder, in this order; each of docs/tutorials/ begins in an empty
one. Commands of ./dev are not run again from inside a test; what pages change is applied for a try here, and built by `./dev docs`."""

import re
import subprocess
import tempfile
import unittest

from pages import PAGES, ROOT, TUTORIALS, PageTest, changes, commands
from refit_cli import BIN


class Readme(PageTest):
    def test_commands_run(self):
        with tempfile.TemporaryDirectory() as folder:
            self.assertGreater(sum(self.run_page(path, folder, BIN) for path in PAGES), 5)

    def test_tutorials_run(self):
        for path in TUTORIALS:
            with tempfile.TemporaryDirectory() as folder:
                self.assertGreater(self.run_page(path, folder, BIN) + (path.name in ("strategy.md", "backend.md")), 0)
        self.assertEqual(len(TUTORIALS), 8)

    def test_first_plan_takes_five_commands(self):
        self.assertLessEqual(len(list(commands(ROOT / "docs/tutorials/first_plan.md"))), 5)

    def test_changes_apply(self):
        for path in TUTORIALS:
            patch, files = changes(path)
            with self.subTest(page=path.name):
                for name in files:
                    self.assertFalse((ROOT / name).exists())
                if patch:
                    done = subprocess.run(["patch", "-p0", "--dry-run", "-f"], cwd=ROOT, input=patch, capture_output=True, text=True)
                    self.assertEqual(done.returncode, 0, done.stdout)

    def test_links_lead_somewhere(self):
        for path in [*PAGES, *TUTORIALS]:
            text = re.sub(r"```.*?```", "", path.read_text(), flags=re.S)
            for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text):
                with self.subTest(page=path.name, target=target):
                    self.assertTrue((path.parent / target).exists())


if __name__ == "__main__":
    unittest.main()
