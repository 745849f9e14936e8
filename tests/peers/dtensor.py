"""Our layouts against PyTorch's own rules: local shapes and offsets of DTensors on random meshes.

Usage: dtensor.py PRINT_LAYOUT [CASES]. Needs torch (requirements.txt). PyTorch says for every rank of
a mesh which part of a tensor it has; print_layout says the same from a layout file of ours.
"""

import importlib
import json
import pathlib
import random
import subprocess
import sys
import tempfile

from torch.distributed.tensor import Replicate, Shard

SEED = 20250731


def find(name):
    """A function or class of DTensor, which torch has moved between modules."""
    for module in ("_utils", "placement_types"):
        found = getattr(importlib.import_module("torch.distributed.tensor." + module), name, None)
        if found is not None:
            return found
    raise SystemExit(f"this torch has no {name}")


compute = find("_compute_local_shape_and_global_offset")
StridedShard = find("_StridedShard")


def make_case(number, rng):
    """A tensor and its mesh; every third one is FSDP over tensor parallelism."""
    shape = [rng.randint(1, 23) for _ in range(rng.randint(1, 3))]
    if number % 3 == 0:
        replicas, fsdp, tp = rng.randint(1, 2), rng.randint(1, 5), rng.randint(1, 4)
        tp_dim = rng.randrange(len(shape))
        strided = StridedShard(0, split_factor=tp) if tp_dim == 0 else Shard(0)
        sizes, placements = [replicas, fsdp, tp], [Replicate(), strided, Shard(tp_dim)]
    else:
        sizes = [rng.randint(1, 5) for _ in range(rng.randint(1, 3))]
        placements = [rng.choice([Replicate()] + [Shard(d) for d in range(len(shape))]) for _ in sizes]
    count = 1
    for size in sizes:
        count *= size
    ranks = rng.sample(range(count + 5), count)  # any numbers in any order
    return {"shape": shape, "sizes": sizes, "placements": placements, "ranks": ranks, "strided": number % 3 == 0}


def coordinates(sizes):
    """Of the ranks of a mesh in order: row-major."""
    if not sizes:
        yield []
        return
    for first in range(sizes[0]):
        for rest in coordinates(sizes[1:]):
            yield [first] + rest


def expected(case):
    """By rank the box that PyTorch gives, without empty ones."""
    boxes = {}
    for rank, coordinate in zip(case["ranks"], coordinates(case["sizes"])):
        local, offset = compute(tuple(case["shape"]), tuple(case["sizes"]), tuple(coordinate), case["placements"])
        if all(extent > 0 for extent in local):
            boxes[rank] = [(lo, lo + extent) for lo, extent in zip(offset, local)]
    return boxes


def layout_entry(name, case):
    """The same as an entry of a layout file. tp cuts before fsdp."""
    axes = ["replica", "fsdp", "tp"] if case["strided"] else [f"a{i}" for i in range(len(case["sizes"]))]
    entry = {
        "name": name,
        "mesh": {"axes": axes, "sizes": case["sizes"], "ranks": case["ranks"]},
        "placements": ["replicate" if p.is_replicate() else f"shard({p.dim})" for p in case["placements"]],
        "split": "chunk",
    }
    if case["strided"]:
        entry["order"] = ["replica", "tp", "fsdp"]
    return entry


def found(program, cases):
    """By tensor and rank the shards that print_layout gives, as text."""
    with tempfile.TemporaryDirectory() as folder:
        model, layout = pathlib.Path(folder, "model.json"), pathlib.Path(folder, "layout.json")
        tensors = {f"t{i}": {"shape": case["shape"], "dtype": "BF16"} for i, case in enumerate(cases)}
        model.write_text(json.dumps(tensors))
        layout.write_text(json.dumps({"tensors": [layout_entry(f"t{i}", case) for i, case in enumerate(cases)]}))
        text = subprocess.run([program, model, layout], check=True, capture_output=True, text=True).stdout
    result = {}
    for line in text.splitlines():
        name, rank, *shards = line.split()
        result[name, int(rank)] = shards
    return result


def dense(box):
    """A box alone in its buffer, as print_layout writes it."""
    strides, step = [], 1
    for lo, hi in reversed(box):
        strides.insert(0, str(step))
        step *= hi - lo
    return ",".join(f"{lo}:{hi}" for lo, hi in box) + "@0/" + ",".join(strides)


def main():
    program, count = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 1000
    rng = random.Random(SEED)
    cases = [make_case(number, rng) for number in range(count)]
    ours = found(program, cases)
    failed, ranks, uneven = 0, 0, 0
    for i, case in enumerate(cases):
        theirs = {rank: [dense(box)] for rank, box in expected(case).items()}
        mine = {rank: ours[f"t{i}", rank] for rank in case["ranks"] if (f"t{i}", rank) in ours}
        ranks += len(case["ranks"])
        uneven += len({tuple(hi - lo for lo, hi in box) for box in expected(case).values()}) > 1
        if mine != theirs:
            failed += 1
            if failed < 10:
                print(f"t{i}: {case}\n  torch {theirs}\n  ours  {mine}", file=sys.stderr)
    strided = sum(case["strided"] for case in cases)
    print(f"{count} meshes, {ranks} ranks, {uneven} of them uneven, {strided} FSDP over TP (seed {SEED})")
    print(f"{count - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
