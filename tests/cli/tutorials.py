"""`./dev docs`: makes the changes of all tutorials in a copy of the sources, builds it, and runs the tutorials to their ends.

Usage: tutorials.py FOLDER, where the copy and its build are kept."""

import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

from pages import ROOT, TUTORIALS, PageTest, changes


def build_changed(folder):
    tree = folder / "tree"
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True)
    for name in listed.stdout.splitlines():
        if (ROOT / name).is_file():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            if not (tree / name).exists() or (tree / name).read_bytes() != (ROOT / name).read_bytes():
                shutil.copy2(ROOT / name, tree / name)
    for path in TUTORIALS:
        patch, files = changes(path)
        if patch:
            subprocess.run(["patch", "-p0", "-f"], cwd=tree, input=patch, text=True, check=True)
        for name, text in files.items():
            (tree / name).write_text(text)
    subprocess.run(["cmake", "--preset", "release"], cwd=tree, stdout=subprocess.DEVNULL, check=True)
    subprocess.run(["cmake", "--build", "--preset", "release", "--target", "refit", "refit-exec", "counting_backend", "--", "--quiet"], cwd=tree, check=True)
    return tree / "build/bin"


class Tutorials(PageTest):
    programs = None

    def test_tutorials_run_to_their_ends(self):
        for path in TUTORIALS:
            with tempfile.TemporaryDirectory() as folder:
                ran = self.run_page(path, folder, self.programs, changed=True)
            print(f"{path.name}: {ran} commands")


if __name__ == "__main__":
    Tutorials.programs = build_changed(pathlib.Path(sys.argv.pop()).resolve())
    unittest.main()
