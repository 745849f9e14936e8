"""README.md and docs/ as programs. Commands are lines that start with "$ " in console blocks, with what belongs to them (a here-document, a
line that ends in a backslash). Lines below a command are what it prints, in order; "..." stands for others. A page that changes Refit has
the changes in diff blocks, and new files in blocks with a path behind the language; what stands behind "./dev build" is for the Refit
that has them."""

import os
import pathlib
import re
import shutil
import subprocess
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
TUTORIALS = sorted((ROOT / "docs/tutorials").glob("*.md"))
PROGRAMS = r"^((mpirun .*)?refit(-exec|_\w+_example)? |counting_backend |cat > |python3 )"


def commands(path):
    """(command, lines that it prints) of a page."""
    for block in re.findall(r"```console\n(.*?)```", path.read_text(), re.S):
        lines = block.splitlines()
        while lines:
            line = lines.pop(0)
            if not line.startswith("$ "):
                continue
            command = line[2:]
            while command.endswith("\\"):
                command += "\n" + lines.pop(0)
            document = re.search(r"<<'?(\w+)'?", command)
            while document and command.splitlines()[-1] != document.group(1):
                command += "\n" + lines.pop(0)
            printed = []
            while lines and not lines[0].startswith("$ "):
                printed.append(lines.pop(0))
            yield command, [line for line in printed if line.strip() not in ("", "...")]


def changes(path):
    """What a page changes: a patch (patch -p0), and new files by name."""
    text = path.read_text()
    return "".join(re.findall(r"```diff\n(.*?)```", text, re.S)), dict(re.findall(r"```\w+ (\S+)\n(.*?)```", text, re.S))


class PageTest(unittest.TestCase):
    def run_page(self, path, folder, programs, changed=False):
        """Runs the commands of a page. Returns how many."""
        environment = dict(os.environ, PATH=f"{programs}:{os.environ['PATH']}", OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
                           OMPI_MCA_rmaps_base_oversubscribe="1", OMPI_MCA_mpi_yield_when_idle="1")
        patch, files = changes(path)
        ran = 0
        for command, printed in commands(path):
            if command.startswith("./dev"):
                if not changed and (patch or files):
                    break
                continue
            with self.subTest(page=path.name, command=command):
                self.assertRegex(command, PROGRAMS)
                if command.startswith("mpirun") and shutil.which("mpirun") is None:
                    self.skipTest("skipped: no mpirun")
                done = subprocess.run(["bash", "-c", command], cwd=folder, env=environment, capture_output=True, text=True)
                self.assertEqual(done.returncode, 0, done.stderr)
                said = [line.rstrip() for line in [*done.stderr.splitlines(), *done.stdout.splitlines()]]
                for line in printed:  # each further down than the one before
                    self.assertIn(line.rstrip(), said)
                    said = said[said.index(line.rstrip()) + 1:]
                ran += 1
        return ran
