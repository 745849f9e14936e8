"""refit plan, check, simulate, compare, bound, demand and refit-exec as a user runs them."""

import json
import subprocess
import unittest

from refit_cli import BIN, DATA, TINY, CliTest

# (model, train, gen, fabric) -> model bytes, nominal lower bound in seconds; bytes of the model / ingress of what binds.
PUBLISHED = {
    "qwen3-4b": ("megatron:dp=8", "vllm:tp=8", "dgx-h100", 8.0e9, 0.0201),
    "qwen3-30b-a3b": ("megatron:ep=8,pp=2", "vllm:tp=8,dp=2", "dgx-h100", 61.1e9, 0.1527),
}


M2N = ["m2n-direct", "m2n-chain"]
STRATEGIES = ["refit", "relay", "direct", "broadcast", "staged-broadcast", "relay-broadcast", "chain-broadcast", "striped", "megatron",
              "megatron-colored", "pull-first", "pull-balanced", "modulo", "miles", "alpa"]


class Plan(CliTest):
    def test_published_bounds(self):
        for model, (train, gen, fabric, size, bound) in PUBLISHED.items():
            inputs = ["--model", model, "--train", train, "--gen", gen, "--fabric", fabric, "--cost", "nominal"]
            _, summary = self.plan(*inputs)
            self.assertAlmostEqual(summary["model_bytes"] / size, 1, delta=0.01)
            self.assertAlmostEqual(summary["lower_bound_s"], bound, delta=bound * 0.005)
            self.assertGreaterEqual(summary["predicted_s"], summary["lower_bound_s"])
            self.assertAlmostEqual(self.json("bound", *inputs)["lower_bound_s"], summary["lower_bound_s"])

    def test_bound_says_what_binds(self):
        # Each of 8 GPUs needs half of the model and holds an eighth of it: NVLink and NIC of one bind together.
        inputs = ["--model", "qwen3-4b", "--train", "fsdp:world=8", "--gen", "vllm:tp=2,dp=4,ranks=0-7", "--fabric", "dgx-h100", "--cost", "nominal"]
        bound = self.json("bound", *inputs)
        self.assertEqual([group["what"] for group in bound["binding"]], ["NVLink into ranks of both sides", "NICs into ranks of both sides"])
        self.assertAlmostEqual(bound["binding"][0]["share"], 0.9, places=4)
        self.assertAlmostEqual(sum(group["share"] for group in bound["binding"]), 1, places=4)
        self.assertAlmostEqual(bound["cut_s"], bound["bytes"] / bound["capacity_bytes_per_s"])
        self.assertGreaterEqual(bound["lower_bound_s"], bound["cut_s"])
        self.assertLessEqual(bound["lower_bound_s"], bound["fluid_s"] * (1 + 1e-9))
        self.assertLessEqual(bound["fluid_s"], bound["lower_bound_s"] * 1.002)
        text = self.run_program("bound", *inputs).stdout
        self.assertIn("90.0 % NVLink into ranks of both sides, 1 link\n", text)

    def test_summary_has_the_contract_keys(self):
        _, summary = self.plan(*TINY)
        for key in ("predicted_s lower_bound_s bound_reason gap strategy estimated_s ranks tensors classes transfers model_bytes "
                    "demand_bytes bytes_total bytes_inter_domain bytes_intra_domain peak_staging_bytes max_peers plan_bytes search_s "
                    "peak_memory_bytes digest").split():
            self.assertIn(key, summary)
        self.assertEqual(summary["ranks"], 12)
        self.assertEqual(summary["bytes_total"], summary["bytes_inter_domain"] + summary["bytes_intra_domain"])

    def test_same_inputs_same_bytes(self):
        first, a = self.plan(*TINY, name="a.plan")
        second, b = self.plan(*TINY, name="b.plan")
        self.assertEqual(first.read_bytes(), second.read_bytes())
        self.assertEqual(a["digest"], b["digest"])
        self.assertEqual(a["plan_bytes"], len(first.read_bytes()))

    def test_check_and_simulate_agree_with_the_search(self):
        for strategy in STRATEGIES:
            path, summary = self.plan(*TINY, "--strategy", strategy)
            self.assertTrue(self.json("check", path)["ok"])
            self.assertEqual(self.json("simulate", path)["predicted_s"], summary["predicted_s"])
            nominal = self.json("simulate", path, "--cost", "nominal")
            self.assertLess(nominal["predicted_s"], summary["predicted_s"])

    def test_compare(self):
        table = self.json("compare", *TINY)
        self.assertEqual(sorted(row["strategy"] for row in table["rows"]), sorted(STRATEGIES + M2N))
        for row in table["rows"]:
            if row["strategy"] in M2N:  # 50 rows of vocabulary over 4 ranks
                self.assertIn("uneven shards", row["error"])
            else:
                self.assertGreaterEqual(row["predicted_s"], table["lower_bound_s"])
        text = self.run_program("compare", *TINY).stdout
        self.assertLessEqual(max(map(len, text.splitlines())), 100)
        self.assertIn("uneven shards", text)
        self.assertEqual([r["strategy"] for r in self.json("compare", *TINY, "--strategies", "direct")["rows"]], ["direct"])

    def test_compare_shows_what_failed_and_the_rest(self):
        done = self.run_program("compare", *TINY, "--strategies", "refit,direct", "--staging", "512B", "--json", code=1)
        rows = json.loads(done.stdout)["rows"]
        self.assertEqual([row["strategy"] for row in rows], ["refit", "direct"])
        self.assertIn("--staging", rows[0]["error"])

    def test_deadline(self):
        inputs = ["--model", "qwen3-0.6b", "--train", "megatron:tp=2,pp=4", "--gen", "vllm:tp=8,dp=2", "--fabric", "dgx-h100"]
        usual, _ = self.plan(*inputs, name="usual.plan")
        default, _ = self.plan(*inputs, "--deadline", "200it", name="default.plan")
        self.assertEqual(usual.read_bytes(), default.read_bytes())
        # Not hit: the same schedule, and the plan says that it had one.
        _, summary = self.plan(*inputs)
        long, late = self.plan(*inputs, "--deadline", "1e6s", name="long.plan")
        again, _ = self.plan(*inputs, "--deadline", "1e6s", name="again.plan")
        self.assertEqual(long.read_bytes(), again.read_bytes())
        self.assertEqual({**summary, **{key: late[key] for key in ("digest", "plan_bytes", "search_s", "peak_memory_bytes")}}, late)
        self.assertEqual(self.json("simulate", long)["predicted_s"], summary["predicted_s"])
        # Hit at once: the first schedule, as with one attempt.
        one, first = self.plan(*inputs, "--deadline", "1it", name="one.plan")
        hit, short = self.plan(*inputs, "--deadline", "1ns", name="hit.plan")
        self.assertEqual(short["predicted_s"], first["predicted_s"])
        self.assertGreaterEqual(short["predicted_s"], summary["predicted_s"])
        self.assertTrue(self.json("check", hit)["ok"])

    def test_few_peers(self):
        inputs = ["--model", "qwen3-0.6b", "--train", "megatron:tp=2,pp=8", "--gen", "vllm:tp=8,dp=2", "--fabric", "dgx-h100"]
        _, usual = self.plan(*inputs)
        path, summary = self.plan(*inputs, "--max-peers", "3")
        self.assertGreater(usual["max_peers"], 3)
        exported = json.loads(self.run_program("export", path, "--format", "json", "-o", "-").stdout)
        domain = {rank["rank"]: rank["nvlink_domain"] for rank in exported["ranks"]}
        peers = {}
        for transfer in exported["transfers"]:
            ends = transfer["from"], transfer["to"]
            if domain[ends[0]] != domain[ends[1]]:
                for one, other in (ends, ends[::-1]):
                    peers.setdefault(one, set()).add(other)
        self.assertEqual(max(map(len, peers.values())), summary["max_peers"])
        self.assertLessEqual(summary["max_peers"], 3)
        text = self.run_program("plan", *inputs, "--max-peers", "3").stdout
        self.assertIn(f"{summary['max_peers']} network peers at most (bound 3)\n", text)
        rows = self.json("compare", *inputs, "--max-peers", "3", "--strategies", "refit,direct")["rows"]
        self.assertIn("--max-peers: found 3, expected at least", rows[1]["error"])

    def test_nothing_to_move_has_no_gap(self):
        _, summary = self.plan(*TINY[:2], "--train", "megatron:tp=2", "--gen", "megatron:tp=2,ranks=0-1", "--fabric", "dgx-h100")
        self.assertIsNone(summary["gap"])
        self.assertEqual(summary["ranks"], 2)

    def test_forwarding_beats_pulling_where_the_source_binds(self):
        inputs = ["--model", "qwen3-0.6b", "--train", "megatron:tp=8", "--gen", "vllm:tp=8,dp=8", "--fabric", "dgx-h100"]
        rows = {row["strategy"]: row["predicted_s"] for row in self.json("compare", *inputs, "--strategies", "refit,relay,direct,striped")["rows"]}
        self.assertLess(rows["refit"] * 2, rows["relay"])
        self.assertLess(rows["refit"], min(rows["direct"], rows["striped"]))

    def test_gpus_without_ranks_carry_nothing(self):
        # Two ranks a side: 2 NICs of 50 GB/s, whatever else the nodes have.
        inputs = ["--model", "qwen3-0.6b", "--train", "megatron:tp=2", "--gen", "vllm:tp=2", "--fabric", "dgx-h100", "--cost", "nominal"]
        _, summary = self.plan(*inputs)
        self.assertAlmostEqual(summary["lower_bound_s"], summary["model_bytes"] / 100e9, delta=1e-3 * summary["lower_bound_s"])
        self.assertLess(summary["gap"], 0.05)

    def test_lost_output_is_an_error(self):
        with open("/dev/full", "w") as full:
            done = subprocess.run([BIN / "refit", "demand", *TINY[:6]], stdout=full, stderr=subprocess.PIPE, text=True)
        self.assertEqual(done.returncode, 1)
        self.assertIn("stdout", done.stderr)

    def test_lost_notes_are_not(self):
        path = self.folder / "a.plan"
        with open("/dev/full", "w") as full:
            done = subprocess.run([BIN / "refit", "plan", *TINY, "-o", path], stdout=subprocess.DEVNULL, stderr=full)
        self.assertEqual(done.returncode, 0)
        self.assertTrue(path.exists())

    def test_odd_names_survive(self):
        model = self.folder / "quo\"te'\n.json"
        model.write_bytes((DATA / "tiny-moe.json").read_bytes())
        path, summary = self.plan("--model", model, *TINY[2:])
        self.assertEqual(self.json("simulate", path)["predicted_s"], summary["predicted_s"])

    def test_another_fabric_brings_its_cost_model(self):
        path, _ = self.plan(*TINY)
        self.assertEqual(self.json("simulate", path, "--fabric", "gb200-nvl72")["cost"], "nccl-gb200")

    def test_demand(self):
        demand = self.json("demand", *TINY[:6])
        self.assertEqual(len(demand["rows"]), 8)  # gen ranks
        self.assertEqual(sum(row["bytes"] for row in demand["rows"]), demand["demand_bytes"])
        one = self.json("demand", *TINY[:6], "--tensor", "lm_head.weight")
        self.assertEqual(len(one["rows"]), 8)
        # 50 rows, 64 with padding, over 4 ranks: 16, 16, 16, 2 rows of 16 bf16 elements; two engines.
        self.assertEqual([row["bytes"] for row in one["rows"]], [512, 512, 512, 64] * 2)
        by_tensor = self.json("demand", *TINY[:6], "--rank", "4")
        self.assertEqual(sum(row["bytes"] for row in by_tensor["rows"]), demand["rows"][0]["bytes"])
        # Without a copy of their own, needers may take each byte from any holder: of train stage 1, which alone has the
        # head, ranks 2 and 3 both have all of it.
        pairs = self.json("demand", *TINY[:6], "--tensor", "lm_head.weight", "--pairs")["rows"]
        self.assertEqual({row["from"] for row in pairs}, {2, 3})
        self.assertEqual(sum(row["bytes"] for row in pairs), 2 * sum(row["bytes"] for row in one["rows"]))
        self.assertEqual(sum(row["only_bytes"] for row in pairs), 0)
        to_four = self.json("demand", *TINY[:6], "--rank", "4", "--pairs")["rows"]
        self.assertEqual({row["to"] for row in to_four}, {4})
        self.assertGreater(sum(row["only_bytes"] for row in to_four), 0)  # its experts
        table = self.run_program("demand", *TINY[:6], "--pairs").stdout
        self.assertIn("nobody else has", table)

    def test_framework_buffers(self):
        # Fused, interleaved and cut through KV heads: every byte arrives where the engine keeps it.
        for train, gen in [
            ("megatron:ep=2,pp=2,fused=on", "vllm:tp=4,dp=2,fused=on"),
            ("megatron:tp=4,etp=1,ep=4,fused=on", "vllm:tp=2,ep=on,fused=on"),
            ("megatron:tp=4,etp=1", "sglang:tp=2,ep=2,fused=on"),
            ("fsdp:world=4,replicas=2", "megatron:tp=2,fused=on"),
        ]:
            for strategy in STRATEGIES:
                inputs = [*TINY[:2], "--train", train, "--gen", gen, "--fabric", "dgx-h100", "--strategy", strategy]
                path, _ = self.plan(*inputs)
                self.run_program("check", path)
                done = self.run_program(path, "--verify", "--json", "-", program="refit-exec")
                self.assertTrue(json.loads(done.stdout)["verified"], inputs)

    def test_replay(self):
        for strategy in STRATEGIES:
            path, summary = self.plan(*TINY, "--strategy", strategy)
            done = self.run_program(path, "--verify", "--iterations", "2", "--json", "-", program="refit-exec")
            result = json.loads(done.stdout)
            self.assertTrue(result["verified"])
            self.assertEqual(result["digest"], summary["digest"])
            self.assertEqual(len(result["iterations"]), 2)

    def test_trace(self):
        path, summary = self.plan(*TINY)
        trace = self.folder / "trace.json"
        self.run_program("simulate", path, "--trace", trace)
        events = [e for e in json.loads(trace.read_text())["traceEvents"] if e["ph"] == "X"]
        self.assertGreaterEqual(len(events), summary["transfers"])


if __name__ == "__main__":
    unittest.main()
