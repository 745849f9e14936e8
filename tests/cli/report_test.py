"""refit report: one page, complete in itself, that a browser shows without an error."""

import html.parser
import json
import re
import shutil
import subprocess
import unittest

from refit_cli import TINY, CliTest

CHROMIUM = shutil.which("chromium")


class Page(html.parser.HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.references, self.ids, self.data, self.inside = [], [], "", False
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        names = dict(attributes)
        self.references += [names[key] for key in ("src", "href") if key in names]
        self.ids += [names["id"]] if "id" in names else []
        self.inside = names.get("id") == "data"

    def handle_endtag(self, tag):
        self.inside = False

    def handle_data(self, data):
        if self.inside:
            self.data += data


class Report(CliTest):
    def setUp(self):
        super().setUp()
        self.path, self.summary = self.plan(*TINY)

    def report(self, *arguments):
        target = self.folder / "report.html"
        self.run_program("report", self.path, "-o", target, *arguments)
        return target

    def browse(self, page, script=""):
        """The page's elements after it has run (and `script` after it), and what the console said."""
        shown = self.folder / "shown.html"
        shown.write_text(page.read_text().replace("</body>", f"<script>{script}</script></body>"))
        done = subprocess.run([CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={self.folder}/profile", "--enable-logging=stderr",
                               "--dump-dom", shown.as_uri()], capture_output=True, text=True, timeout=300)
        self.assertEqual(done.returncode, 0, done.stderr[-2000:])
        return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]

    def test_page_is_complete_in_itself(self):
        page = Page(self.report().read_text())
        for reference in page.references:
            self.assertRegex(reference, r"^(#|data:)")
        self.assertLessEqual({"compare", "links", "traffic", "link-time", "rank-time", "memory", "run"}, set(page.ids))
        data = json.loads(page.data)
        self.assertEqual(data["digest"], self.summary["digest"])
        self.assertEqual(data["predicted_s"], self.summary["predicted_s"])
        self.assertEqual(sum(data["traffic"]["bytes"]), self.summary["bytes_total"])
        self.assertEqual(data["totals"]["inter"], self.summary["bytes_inter_domain"])

    def test_compares_as_compare_does(self):
        rows = {row["strategy"]: row for row in json.loads(Page(self.report().read_text()).data)["others"]}
        for row in self.json("compare", *TINY)["rows"]:
            if row["strategy"] != "refit" and "error" not in row:
                self.assertEqual(rows[row["strategy"]]["predicted_s"], row["predicted_s"])
        self.assertEqual(json.loads(Page(self.report("--strategies", "none").read_text()).data)["others"], [])
        named = json.loads(Page(self.report("--strategies", "relay").read_text()).data)["others"]
        self.assertEqual([row["strategy"] for row in named], ["relay"])

    def test_wrong_input(self):
        self.assertIn("no-such", self.run_program("report", self.path, "-o", "x.html", "--strategies", "no-such", code=2, cwd=self.folder).stderr)
        self.assertFalse((self.folder / "x.html").exists())
        self.run_program("report", self.folder / "none.plan", "-o", "x.html", code=2, cwd=self.folder)
        self.run_program("report", self.path, code=2)

    @unittest.skipUnless(CHROMIUM, "skipped: no chromium")
    def test_browser_shows_it_without_an_error(self):
        dom, console = self.browse(self.report())
        self.assertEqual(console, [])
        self.assertIn(f"<title>Refit of tiny-moe: ", dom)
        self.assertNotRegex(dom.split("<script")[0], "undefined|NaN|null")
        self.assertGreaterEqual(dom.count("<canvas"), 3)
        self.assertIn('<tr class="own"><td>refit</td>', dom)
        self.assertEqual(len(re.findall(r'<section id="[^"]*"><h2>[^<]*</h2>(?:<p>[^<]*</p>)?<div class="figure"[^>]*></div>', dom)), 0)  # none is empty

    @unittest.skipUnless(CHROMIUM, "skipped: no chromium")
    def test_keys_read_the_cells(self):
        script = """const canvas = document.querySelector('#traffic canvas');
          for (const key of ['ArrowDown', 'ArrowRight', 'ArrowRight', 'ArrowUp'])
            canvas.dispatchEvent(new KeyboardEvent('keydown', {key}));"""
        dom, console = self.browse(self.report(), script)
        self.assertEqual(console, [])
        said = re.search(r'<div id="tip"[^>]*>([^<]*)</div>', dom).group(1)
        self.assertRegex(said, r"^n0 \(train\) to n1 \(gen\): [1-9]")


if __name__ == "__main__":
    unittest.main()
