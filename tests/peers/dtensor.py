"""Our layouts against PyTorch's own rules: local shapes and offsets of DTensors on random meshes.

Usage: dtensor.py PRINT_LAYOUT [CASES]. Needs torch (requirements.txt). PyTorch says for every rank of
a mesh which part of a tensor it has; print_layout says the same from a layout file of ours.
"""

import json
import pathlib
import random
import subprocess
import sys
import tempfile

from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from torch.distributed.tensor.placement_types import _StridedShard

SEED = 20250731


class Mesh:
    """What PyTorch's function asks of a DeviceMesh, without a process group: one rank's view."""

    def __init__(self, sizes, coordinate):
        self.shape, self.ndim, self.coordinate = tuple(sizes), len(sizes), list(coordinate)

    def size(self, axis):
        return self.shape[axis]

    def get_coordinate(self):
        return self.coordinate


def compute(shape, sizes, coordinate, placements):
    """Local shape and global offset."""
    local, offset = compute_local_shape_and_global_offset(tuple(shape), Mesh(sizes, coordinate), placements)
    return list(local), list(offset)


def make_case(number, rng):
    """A tensor and its mesh; every third one is FSDP over tensor parallelism."""
    shape = [rng.randint(1, 23) for _ in range(rng.randint(1, 3))]
    if number % 3 == 0:
        replicas, fsdp, tp = rng.randint(1, 2), rng.randint(1, 5), rng.randint(1, 4)
        sizes, placements = [replicas, fsdp, tp], [Replicate(), Shard(0), Shard(rng.randrange(len(shape)))]
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


def fsdp_over_tp(case, coordinate):
    """FSDP2 cuts with torch.chunk what tp leaves: the same axes, tp first. Where all divides, DTensor says that as
    _StridedShard on the mesh as it is, which this function (of torch 2.7) knows for even shards only."""
    order = [0, 2, 1]  # replica, tp, fsdp
    shape, sizes, placements = case["shape"], case["sizes"], case["placements"]
    pick = lambda values: [values[axis] for axis in order]
    result = compute(shape, pick(sizes), pick(coordinate), pick(placements))
    fsdp, tp = sizes[1:]
    if placements[2].dim == 0 and shape[0] % (fsdp * tp) == 0:
        strided = [placements[0], _StridedShard(0, split_factor=tp), placements[2]]
        assert compute(shape, sizes, coordinate, strided) == result, (case, coordinate)
    return result


def expected(case):
    """By rank the box that PyTorch gives, without empty ones."""
    boxes = {}
    for rank, coordinate in zip(case["ranks"], coordinates(case["sizes"])):
        if case["strided"]:
            local, offset = fsdp_over_tp(case, coordinate)
        else:
            local, offset = compute(case["shape"], case["sizes"], coordinate, case["placements"])
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
