"""Installs into a folder of its own and builds against it, as others do: C against the executor, C++ against the planner. And the
version, which stands in CMakeLists.txt and nowhere else."""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(ROOT / "tests/cli"))
from refit_cli import TINY  # noqa: E402

VERSION = re.search(r"project\(refit VERSION ([0-9.]+)", (ROOT / "CMakeLists.txt").read_text()).group(1)


class Package(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)
        first = cls.folder / "installed"
        subprocess.run(["cmake", "--install", os.environ["REFIT_BUILD"], "--prefix", first], check=True, capture_output=True)
        cls.prefix = cls.folder / "moved"  # nothing remembers where it was installed
        first.rename(cls.prefix)

    def configure(self, name, *options):
        build = self.folder / name
        shutil.rmtree(build, ignore_errors=True)
        done = subprocess.run(["cmake", "-S", HERE / name, "-B", build, "-G", "Ninja", f"-DCMAKE_PREFIX_PATH={self.prefix}", *options],
                              capture_output=True, text=True)
        return build, done

    def build(self, name):
        build, done = self.configure(name)
        self.assertEqual(done.returncode, 0, done.stderr)
        done = subprocess.run(["cmake", "--build", build], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stdout)
        return build

    def run_program(self, *arguments, **keywords):
        done = subprocess.run([*map(str, arguments)], capture_output=True, text=True, cwd=self.folder, **keywords)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def test_cpp_plans_and_c_replays(self):
        theirs = json.loads(self.run_program(self.prefix / "bin/refit", "plan", *TINY, "-o", "theirs.plan", "--json"))
        build = self.build("consumer_cpp")
        data = (build / "data").read_text()
        self.assertEqual(pathlib.Path(data).resolve(), (self.prefix / "share/refit").resolve())
        model = TINY[TINY.index("--model") + 1]
        digest, predicted = self.run_program(build / "consumer", model, "ours.plan", env={**os.environ, "REFIT_DATA": data}).split()
        self.assertEqual((digest, float(predicted)), (theirs["digest"], theirs["predicted_s"]))
        version = self.run_program(self.build("consumer_c") / "consumer", "ours.plan")
        self.assertEqual(version.strip(), VERSION)

    @unittest.skipUnless(shutil.which("dpkg-deb"), "skipped: no dpkg")
    def test_debian_package(self):
        root = self.folder / "root"
        self.run_program("cpack", "--config", pathlib.Path(os.environ["REFIT_BUILD"]) / "CPackConfig.cmake", "-B", self.folder / "deb")
        (package,) = (self.folder / "deb").glob(f"refit_{VERSION}_*.deb")
        self.run_program("dpkg-deb", "-x", package, root)
        names = self.run_program(root / "usr/bin/refit", "doctor")
        self.assertIn("dgx-h100", names)
        self.assertIn(".TH REFIT 1", (root / "usr/share/man/man1/refit.1").read_text())
        self.assertIn("libfmt", self.run_program("dpkg-deb", "-f", package, "Depends"))

    def test_consumer_does_not_get_our_flags(self):
        text = "".join(path.read_text() for path in self.prefix.rglob("refit-*-targets*.cmake"))
        self.assertIn("refit::exec", text)
        self.assertNotIn("-Wall", text)
        self.assertNotIn(str(ROOT), text)
        self.assertNotIn(str(self.folder), text)

    def test_what_is_not_there_is_refused(self):
        for wanted, said in (("-DWANTED=9.0", VERSION), ("-DWANTED=0.0.1", VERSION)):
            _, done = self.configure("consumer_c", wanted)
            self.assertNotEqual(done.returncode, 0)
            self.assertIn(said, done.stderr)
        _, done = self.configure("consumer_c", "-DWANTED=COMPONENTS;plannner")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("plannner", done.stderr)

    def test_version_stands_in_one_place(self):
        for program in ("refit", "refit-exec"):
            self.assertEqual(self.run_program(self.prefix / "bin" / program, "--version").split()[-1], VERSION)
        self.assertTrue(list(self.prefix.rglob(f"librefit_exec.so.{VERSION}")))
        self.assertIn(f"## {VERSION}", (ROOT / "CHANGELOG.md").read_text())
        listed = subprocess.run(["git", "-C", ROOT, "ls-files", "*.cc", "*.h", "*.c", "*.py", "*.toml", "*.cmake", "*.in", "*CMakeLists.txt", "dev"],
                                capture_output=True, text=True)
        self.assertEqual(listed.returncode, 0, listed.stderr)
        naming = [name for name in listed.stdout.split() if VERSION in (ROOT / name).read_text()]
        self.assertEqual(naming, ["CMakeLists.txt"])


if __name__ == "__main__":
    unittest.main()
