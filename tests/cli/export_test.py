"""The JSON export against DESIGN.md section 4, by an oracle that shares nothing with the planner: start from the `train` boxes, apply `transfers`
in order, element by element. Nobody sends what it lacks, every `gen` element is written exactly once."""

import csv
import io
import itertools
import json
import unittest

import yaml
from refit_cli import TINY, CliTest


def cells(box):
    return itertools.product(*(range(lo, hi) for lo, hi in box))


def replay(plan):
    """Applies the export; returns the number of elements written. Raises AssertionError with the first fault."""
    held = {}  # (rank, tensor, place) -> set of elements
    wanted = {}
    for t, tensor in enumerate(plan["tensors"]):
        for side in ("train", "gen"):
            for rank, boxes in plan["maps"][tensor[side]].items():
                target = held if side == "train" else wanted
                place = target.setdefault((int(rank), t, side), set())
                for box in boxes:
                    place.update(cells(box))
    seen = set()
    for transfer in plan["transfers"]:
        assert transfer["id"] not in seen
        assert set(transfer["after"]) <= seen, f"transfer {transfer['id']} comes before what it waits for"
        seen.add(transfer["id"])
        for piece in transfer["pieces"]:
            t = piece["tensor"]
            moved = set(cells(piece["box"]))
            source = held.get((transfer["from"], t, piece["src"]), set())
            assert moved <= source, f"transfer {transfer['id']}: rank {transfer['from']} lacks {piece}"
            target = held.setdefault((transfer["to"], t, piece["dst"]), set())
            if piece["dst"] == "gen":
                assert not moved & target, f"transfer {transfer['id']}: written twice: {piece}"
                assert moved <= wanted.get((transfer["to"], t, "gen"), set()), f"outside: {piece}"
            target.update(moved)
    for key, elements in wanted.items():
        assert held.get(key, set()) == elements, f"{key}: {len(elements)} wanted, {len(held.get(key, set()))} written"
    return sum(len(elements) for elements in wanted.values())


class Export(CliTest):
    def export(self, path, form):
        output = self.folder / f"plan.{form}"
        self.run_program("export", path, "--format", form, "-o", output)
        return output.read_text()

    def test_json_replays(self):
        layouts = [
            TINY,
            TINY[:2] + ["--train", "megatron:tp=2,dp=2", "--gen", "vllm:tp=2,dp=2,ep=on", "--fabric", "dgx-h100"],
            TINY[:2] + ["--train", "megatron:tp=2,pp=2", "--gen", "vllm:tp=4,ranks=0-3", "--fabric", "dgx-h100"],  # colocated
            TINY[:2] + ["--train", "fsdp:world=3", "--gen", "vllm:tp=1", "--fabric", "gb200-nvl72"],
        ]
        for inputs in layouts:
            for strategy in ("refit", "relay", "direct", "striped"):
                path, summary = self.plan(*inputs, "--strategy", strategy)
                plan = json.loads(self.export(path, "json"))
                self.assertEqual(plan["format"], "refit-plan")
                self.assertEqual(plan["version"], 1)
                self.assertEqual(plan["digest"], summary["digest"])
                self.assertEqual(plan["predicted_s"], summary["predicted_s"])
                self.assertGreater(replay(plan), 0)
                wire = sum(1 for t in plan["transfers"] if t["from"] != t["to"])
                self.assertEqual(wire, summary["transfers"])

    def test_oracle_finds_a_dropped_and_a_doubled_transfer(self):
        path, _ = self.plan(*TINY)
        plan = json.loads(self.export(path, "json"))
        dropped = dict(plan, transfers=plan["transfers"][1:])
        with self.assertRaises(AssertionError):
            replay(dropped)
        extra = dict(plan["transfers"][-1], id=len(plan["transfers"]))
        with self.assertRaises(AssertionError):
            replay(dict(plan, transfers=plan["transfers"] + [extra]))

    def test_yaml_and_csv_say_the_same(self):
        path, summary = self.plan(*TINY)
        plan = json.loads(self.export(path, "json"))
        self.assertEqual(yaml.safe_load(self.export(path, "yaml")), plan)
        rows = list(csv.DictReader(io.StringIO(self.export(path, "csv"))))
        self.assertEqual(len(rows), len(plan["transfers"]))
        self.assertEqual(sum(int(r["bytes"]) for r in rows if r["from"] != r["to"]), summary["bytes_total"])


if __name__ == "__main__":
    unittest.main()
