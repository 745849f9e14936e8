"""refit topo, --place and --exclude as a user runs them; and that plans change with the fabric for the right reason."""

import json
import shutil
import unittest

from refit_cli import ROOT, TINY, CliTest

NAMED = ("aws-p5 azure-ndv5 dgx-a100 dgx-b200 dgx-h100 dgx-h100-2to1 dgx-h100-rail-only dgx-h200 gb200-nvl72 gb300-nvl72 "
         "gcp-a3-mega gh200-4x4 oci-h100").split()
FIXTURES = ROOT / "tests/sim/fabric/data"

# One node trains, one generates, and every gen GPU needs a part of its own: the ingress of the gen node binds.
NODES = ["--model", "qwen3-4b", "--train", "megatron:dp=8", "--gen", "vllm:tp=8", "--cost", "nominal"]


class Topo(CliTest):
    def write(self, name, text):
        path = self.folder / name
        path.write_text(text)
        return path

    def changed(self, name, links):
        """A named fabric with changed links."""
        return self.write("changed.yaml", (ROOT / f"topologies/{name}.yaml").read_text() + f"\nlinks: {links}\n")

    def bound(self, fabric, *more):
        return self.json("bound", *NODES, "--fabric", fabric, *more)

    def export(self, plan):
        out = self.folder / "plan.json"
        self.run_program("export", plan, "--format", "json", "-o", out)
        return json.loads(out.read_text())

    def test_import_show_and_validate(self):
        out = self.folder / "cluster.yaml"
        done = self.run_program("topo", "import", "dgx-h100:gpus=2", FIXTURES / "ibnetdiscover.out", "-o", out)
        self.assertIn("2 nodes, 4 GPUs in 2 NVLink domains, 4 NICs on 2 rails, 2 leaves", done.stdout)
        self.assertIn("note: ", done.stderr)
        self.assertIn("0 faults", done.stdout)
        self.assertIn("leaf-01, up 1200 Gbps", self.run_program("topo", "show", out).stdout)
        self.assertTrue(self.json("topo", "validate", out)["ok"])
        dot = self.run_program("topo", "show", out, "--dot", "-").stdout
        self.assertTrue(dot.startswith("graph G {"))
        plan, _ = self.plan("--model", TINY[1], "--train", "fsdp:world=2", "--gen", "vllm:tp=2", "--fabric", out)
        self.assertEqual({rank["node"] for rank in self.export(plan)["ranks"]}, {"host-1", "host-2"})

    def test_import_to_stdout_is_what_it_writes(self):
        smi = FIXTURES / "smi_h100_8_nics.txt"
        how = ["--gpu", "h100", "--nic", "400Gbps"]
        out = self.folder / "node.yaml"
        self.run_program("topo", "import", smi, *how, "-o", out)
        self.assertEqual(self.run_program("topo", "import", smi, *how, "--name", "node", "-o", "-").stdout, out.read_text())
        again = self.folder / "again.yaml"
        self.run_program("topo", "import", out, "-o", again, "--name", "node")
        self.assertEqual(out.read_text().splitlines()[2:], again.read_text().splitlines()[2:])

    def test_svg(self):
        svg = self.folder / "f.svg"
        if shutil.which("dot") is None:
            done = self.run_program("topo", "show", "dgx-h100", "--svg", svg, code=1)
            self.assertIn("Graphviz", done.stderr)
        else:
            self.run_program("topo", "show", "dgx-h100", "--svg", svg)
            self.assertIn("<svg", svg.read_text())

    def test_validate_finds_what_is_planted(self):
        for links, words in [("[{name: n1.nic2.out, rate: 200Gbps}]", ["n1.nic2.out", "25 GB/s"]),
                             ("[{name: '*.nic*', rate: 400GB/s}]", ["bits taken for bytes"])]:
            done = self.run_program("topo", "validate", self.changed("dgx-h100", links), code=1)
            for word in words:
                self.assertIn(word, done.stdout)

    def test_wrong_usage(self):
        cases = [
            (["topo"], ["subcommand"]),
            (["topo", "import", "dgx-h100"], ["output"]),
            (["topo", "import", "no-such-file", "-o", "x"], ["no-such-file"]),
            (["topo", "import", FIXTURES / "rocm_smi.txt", "-o", "x"], ["rocm_smi.txt", "rocm-smi", "nvidia-smi"]),
            (["topo", "import", FIXTURES / "ibnetdiscover.out", "-o", "x"], ["ibnetdiscover.out", "2 hosts", "node file"]),
            (["topo", "import", FIXTURES / "smi_pairs.txt", "-o", "x"], ["smi_pairs.txt:1", "NV4", "--gpu"]),
            (["topo", "import", FIXTURES / "smi_pairs.txt", "--gpu", "a100", "--nic", "400", "-o", "x"], ["--nic", "400"]),
            (["topo", "show", "dgx-h900"], ["dgx-h900", "dgx-h100"]),
            (["topo", "show", "dgx-h100:gpus=9"], ["gpus=9", "8"]),
            (["topo", "show", "dgx-h100", "--exclude", "n7"], ["--exclude", "n7", "n0.gpu0"]),
            (["plan", *TINY, "--exclude", "n0.nic9"], ["--exclude", "n0.nic9"]),
            (["plan", *TINY, "--place", "no-such.yaml"], ["no-such.yaml"]),
            (["plan", *TINY, "--place", self.write("p.yaml", "train: n0\n")], ["p.yaml", "rank"]),
        ]
        for arguments, words in cases:
            done = self.run_program(*arguments, code=2)
            for word in words:
                self.assertIn(word, done.stderr, arguments)

    def test_every_named_fabric_plans(self):
        for name in NAMED:
            plan, summary = self.plan("--model", TINY[1], "--train", "megatron:ep=2,pp=2", "--gen", "vllm:tp=4,dp=2", "--fabric", name)
            self.assertGreaterEqual(summary["predicted_s"], summary["lower_bound_s"], name)
            self.assertTrue(self.json("check", plan)["ok"], name)
            self.assertEqual(self.json("simulate", plan)["predicted_s"], summary["predicted_s"], name)

    def test_excluded_parts_are_planned_around(self):
        plan, summary = self.plan(*TINY, "--exclude", "n0.gpu0", "--exclude", "n1")
        exported = self.export(plan)
        self.assertEqual({rank["node"] for rank in exported["ranks"]}, {"n0", "n2"})
        self.assertNotIn(("n0", 0), {(rank["node"], rank["device"]) for rank in exported["ranks"]})
        # The plan knows it: the same time again from the file alone.
        self.assertEqual(self.json("simulate", plan)["predicted_s"], summary["predicted_s"])
        self.assertNotEqual(summary["digest"], self.plan(*TINY)[1]["digest"])

    def test_place_file(self):
        place = self.write("place.yaml", "train: n2\ngen: n[0-1].gpu[4-7]\nranks: {0: n3.gpu5}\n")
        plan, summary = self.plan(*TINY, "--place", place)
        where = {rank["rank"]: (rank["node"], rank["device"]) for rank in self.export(plan)["ranks"]}
        self.assertEqual(where[0], ("n3", 5))
        self.assertEqual([where[rank] for rank in (1, 2, 3)], [("n2", 0), ("n2", 1), ("n2", 2)])
        self.assertEqual([where[rank] for rank in range(4, 12)], [(f"n{n}", g) for n in (0, 1) for g in (4, 5, 6, 7)])
        self.assertEqual(self.json("simulate", plan)["predicted_s"], summary["predicted_s"])


class RightReason(CliTest):
    """Bounds and plans follow what changes in the fabric."""

    write, changed, bound, export = Topo.write, Topo.changed, Topo.bound, Topo.export

    def test_a_nic_down_costs_eight_sevenths(self):
        whole = self.bound("dgx-h100")
        down = self.bound("dgx-h100", "--exclude", "n1.nic3")
        self.assertIn(" at 350 GB/s", down["bound_reason"])
        self.assertAlmostEqual(down["lower_bound_s"] / whole["lower_bound_s"], 8 / 7, places=6)
        plan, summary = self.plan(*NODES, "--fabric", "dgx-h100", "--exclude", "n1.nic3")
        self.assertTrue(self.json("check", plan)["ok"])
        self.assertGreaterEqual(summary["predicted_s"], summary["lower_bound_s"])
        self.assertLess(summary["gap"], 0.10)

    def test_a_gpu_without_its_nic_may_use_one_that_no_rank_has(self):
        """Ranks on four GPUs of the gen node; the NIC of one is gone, and those of GPUs 4 to 7 are free."""
        inputs = ["--model", "qwen3-4b", "--train", "megatron:dp=8", "--gen", "vllm:tp=4", "--cost", "nominal", "--fabric", "dgx-h100"]
        for strategy in ("refit", "direct"):
            plan, summary = self.plan(*inputs, "--exclude", "n1.nic3", "--strategy", strategy)
            self.assertTrue(self.json("check", plan)["ok"])
            self.assertGreaterEqual(summary["predicted_s"], summary["lower_bound_s"])

    def test_a_slow_rail(self):
        slow = self.bound(self.changed("dgx-h100", "[{name: '*.nic5', rate: 200Gbps}]"))
        self.assertAlmostEqual(slow["lower_bound_s"] / self.bound("dgx-h100")["lower_bound_s"], 8 / 7.5, places=6)

    def test_nics_of_half_the_rate(self):
        half = self.bound(self.changed("dgx-h100", "[{name: 'n1.nic*', rate: 200Gbps}]"))
        self.assertAlmostEqual(half["lower_bound_s"] / self.bound("dgx-h100")["lower_bound_s"], 2, places=6)
        self.assertAlmostEqual(self.bound("dgx-h100:n1.nic*=200Gbps")["lower_bound_s"], half["lower_bound_s"])
        self.assertAlmostEqual(self.bound("dgx-h100:nic=200Gbps")["lower_bound_s"], half["lower_bound_s"])

    def test_the_way_between_leaves(self):
        """Trainer below one leaf, engine below another, with half as much between them as their NICs have."""
        hosts = "hosts: [{name: a, leaves: leaf-a}, {name: b, leaves: leaf-b}]\n"
        node = "node: {gpus: 8, nvlink: 450GB/s, nvlink_latency: 300ns, nics: 8, nic: 400Gbps, nic_latency: 1us}\n"
        switches = "[{name: core}, {name: leaf-a, parent: core, up: UP, latency: 1us}, {name: leaf-b, parent: core, up: UP, latency: 1us}]"
        text = "name: f\ndefault_cost: nominal\n" + node + "network: {kind: switches, switches: " + switches + "}\n" + hosts
        full = self.bound(self.write("full.yaml", text.replace("UP", "3.2Tbps")))
        half = self.bound(self.write("half.yaml", text.replace("UP", "1.6Tbps")))
        self.assertAlmostEqual(half["lower_bound_s"] / full["lower_bound_s"], 2, places=6)

    def test_four_nics_a_gpu_are_one_of_their_sum(self):
        self.assertAlmostEqual(self.bound("aws-p5")["lower_bound_s"], self.bound("dgx-h100")["lower_bound_s"])

    def test_rail_only_crosses_no_rails(self):
        inputs = ["--model", "qwen3-0.6b", "--train", "megatron:tp=4,pp=2", "--gen", "vllm:tp=8", "--fabric", "dgx-h100-rail-only"]
        done = self.run_program("plan", *inputs, "--strategy", "direct", "-o", self.folder / "b.plan", code=2)
        self.assertIn("nothing joins the rails", done.stderr)
        plan, _ = self.plan(*inputs)
        self.assertTrue(self.json("check", plan)["ok"])
        exported = self.export(plan)
        rank = {entry["rank"]: entry for entry in exported["ranks"]}
        for transfer in exported["transfers"]:
            a, b = rank[transfer["from"]], rank[transfer["to"]]
            if a["nvlink_domain"] != b["nvlink_domain"]:
                self.assertEqual(a["nics"], b["nics"])


if __name__ == "__main__":
    unittest.main()
