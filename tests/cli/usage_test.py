"""What the programs say of themselves: help, completion, manual pages, doctor."""

import os
import pty
import re
import subprocess
import unittest

from refit_cli import BIN, TINY, CliTest

COMMANDS = ["plan", "compare", "bound", "demand", "check", "simulate", "export", "doctor"]


class Usage(CliTest):
    def complete(self, *words, program="refit"):
        """What bash offers for the last word."""
        script = self.folder / "completion"
        script.write_text(self.run_program("--completion", program=program).stdout)
        line = " ".join(f"'{word}'" for word in words)
        asked = f"source {script}; COMP_WORDS=({line}); COMP_CWORD={len(words) - 1}; _{program.replace('-', '_')}; printf '%s\\n' \"${{COMPREPLY[@]}}\""
        return subprocess.run(["bash", "-c", asked], cwd=self.folder, capture_output=True, text=True, check=True).stdout.split()

    def test_completion_offers_commands_options_and_names(self):
        self.assertLessEqual(set(COMMANDS), set(self.complete("refit", "")))
        self.assertEqual(self.complete("refit", "com"), ["compare"])
        self.assertEqual(self.complete("refit", "plan", "--tr"), ["--train"])
        self.assertEqual(self.complete("refit", "check", "--tr"), [])
        self.assertIn("dgx-h100", self.complete("refit", "plan", "--fabric", "dgx"))
        self.assertIn("qwen3-0.6b", self.complete("refit", "bound", "--model", "qwen3-0"))
        self.assertEqual(self.complete("refit-exec", "--ver", program="refit-exec"), ["--version", "--verify"])
        self.assertEqual(self.complete("refit-exec", "x.plan", "--backend", "ho", program="refit-exec"), ["host"])

    def test_completion_falls_back_to_files(self):
        (self.folder / "mine.plan").touch()
        self.assertIn("mine.plan", self.complete("refit", "check", "mine"))

    def test_manual_pages_name_every_command_and_option(self):
        page = self.run_program("--man").stdout
        self.assertTrue(page.startswith('.TH REFIT 1 "" "refit '))
        for command in COMMANDS:
            self.assertIn(f".SS refit {command}\n", page)
            options = re.findall(r"--[a-z-]+", self.run_program(command, "--help").stdout.split("Example")[0])
            for option in options:
                if option not in ("--help", "--version"):
                    self.assertIn(option.replace("-", "\\-"), page)
        for line in page.splitlines():  # a request is one we know
            self.assertRegex(line, r"^([^.']|\\&|\.(TH|SH|SS|TP|nf|fi|br)\b|$)")
        self.assertIn(".TH REFIT-EXEC 1", self.run_program("--man", program="refit-exec").stdout)

    def test_doctor_names_what_brings_what_is_missing(self):
        findings = {finding["what"]: finding for finding in self.json("doctor")["findings"]}
        self.assertIn("dgx-h100", findings["fabrics"]["found"])
        self.assertEqual(set(findings), {"host", "models", "fabrics", "MPI", "GPU driver", "NCCL", "CUDA compiler", "namespaces", "Graphviz"})
        bare = {finding["what"]: finding["found"] for finding in self.json("doctor", env={"PATH": "/nowhere"})["findings"]}
        for program in ("MPI", "CUDA compiler", "namespaces", "Graphviz"):
            self.assertIsNone(bare[program])
        text = self.run_program("doctor", env={"PATH": "/nowhere"}).stdout
        self.assertIn("- MPI            missing; Debian: openmpi-bin", text)


    def test_lines_fit_in_100_columns(self):
        texts = [self.run_program(*command, "--help").stdout for command in ([], ["topo"], ["topo", "import"], *([name] for name in COMMANDS))]
        texts += [self.run_program("--help", program="refit-exec").stdout, self.run_program("doctor").stdout]
        plan, _ = self.plan(*TINY)
        layouts = TINY[:6]
        for command in (["demand", *layouts], ["demand", *layouts, "--pairs"], ["bound", *TINY], ["compare", *TINY], ["plan", *TINY],
                        ["check", plan], ["simulate", plan], ["explain", plan]):
            texts.append(self.run_program(*command, cwd=self.folder).stdout)
        for text in texts:
            for line in text.splitlines():
                if str(self.folder) not in line:  # a path stays whole
                    self.assertLessEqual(len(line), 100, line)

    def test_progress_is_for_terminals(self):
        """What a command says on stderr when that is a terminal."""

        def on_terminal(*arguments):
            ours, theirs = pty.openpty()
            done = subprocess.Popen([BIN / "refit", "plan", *TINY, *arguments], cwd=self.folder, stdout=subprocess.DEVNULL, stderr=theirs)
            os.close(theirs)
            said = b""
            try:
                while part := os.read(ours, 4096):
                    said += part
            except OSError:  # all that held the other end have ended
                pass
            os.close(ours)
            self.assertEqual(done.wait(), 0)
            return said.decode()

        self.assertRegex(on_terminal(), r"\r\[#*\.*\] \w+")
        self.assertRegex(on_terminal(), r"\] bound [\d.]+ [mun]?s\x1b.*\] bound [\d.]+ [mun]?s, best [\d.]+ [mun]?s")
        self.assertTrue(on_terminal().endswith("\r\x1b[K"))  # and is gone at the end
        self.assertEqual(on_terminal("--quiet"), "")
        done = self.run_program("plan", *TINY)
        self.assertNotIn("\x1b", done.stdout + done.stderr)
        self.assertNotIn("\r", done.stdout + done.stderr)


if __name__ == "__main__":
    unittest.main()
