"""refit.executor on the host backend with NumPy: what arrives is what slicing the whole tensor gives."""

import importlib.util
import pathlib
import tempfile
import types
import unittest

import numpy as np

import refit
from refit import memory
from refit.executor import Executor, HostWorld

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
JOB = {"model": ROOT / "tests/cli/data/tiny-moe.json", "train": "megatron:ep=2,pp=2", "gen": "vllm:tp=4,dp=2", "fabric": "dgx-h100"}


class OnlyDlpack:
    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **how):
        return self.array.__dlpack__(**how)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


def whole_tensors(world, version, dtype=np.uint16):
    """Values of every tensor of the plan; bf16 as raw bits."""
    shapes = {}
    for executor in world:
        for shard in executor.shards():
            ends = [hi for _, hi in shard.box]
            shapes[shard.tensor] = np.maximum(shapes.get(shard.tensor, ends), ends)
    values = np.random.default_rng(version)
    if dtype == np.float32:
        return {name: values.standard_normal(shape, dtype=np.float32) for name, shape in sorted(shapes.items())}
    return {name: values.integers(0, 1 << 16, shape, dtype=dtype) for name, shape in sorted(shapes.items())}


class ExecutorTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = pathlib.Path(folder.name) / "a.plan"

    def open(self, hooks={}, **changes):
        refit.plan(**{**JOB, **changes}).save(self.path)
        world = HostWorld(self.path, timeout_s=20, **hooks)
        self.addCleanup(world.close)
        return world

    def test_gen_arrays_are_slices_of_the_whole(self):
        world = self.open()
        self.assertEqual(len(world), 12)
        arrays = {}
        for executor in world:
            for number, shard in enumerate(executor.shards()):
                if number % 3 == 0:  # a part of a larger array, columns first
                    array = np.zeros([extent + 1 for extent in shard.shape], np.uint16, order="F")[tuple(slice(extent) for extent in shard.shape)]
                else:
                    array = np.zeros(shard.shape, np.uint16)
                arrays[executor.rank, shard] = array
                executor.bind(shard, OnlyDlpack(array) if number % 3 == 1 else array)
        world.prepare()
        for version in (1, 2, 3):
            whole = whole_tensors(world, version)
            for (_, shard), array in arrays.items():
                array[...] = whole[shard.tensor][shard.slices] if shard.side == "train" else 0
            world.run(version)
            gen = 0
            for (rank, shard), array in arrays.items():
                np.testing.assert_array_equal(array, whole[shard.tensor][shard.slices], f"rank {rank}, {shard}")
                gen += shard.side == "gen"
            self.assertGreater(gen, 100)
            self.assertEqual([executor.state().version for executor in world], [version] * 12)
        state = world[11].state()
        self.assertEqual((state.runs, state.torn, state.failed), (3, False, False))
        self.assertGreater(state.bytes_received, 0)

    def test_what_is_not_bound_is_allocated_and_seen_without_a_copy(self):
        world = self.open()
        world.prepare()
        whole = whole_tensors(world, 0)
        for executor in world:
            for shard in executor.shards("train"):
                view = np.asarray(executor.locate(shard))
                self.assertEqual((view.shape, view.dtype), (shard.shape, np.uint16))
                view[...] = whole[shard.tensor][shard.slices]
        world.run()
        for executor in world:
            for shard in executor.shards("gen"):
                np.testing.assert_array_equal(np.asarray(executor.locate(shard.tensor, index=shard.index)), whole[shard.tensor][shard.slices])

    def test_casts(self):
        world = self.open(train="megatron:ep=2,pp=2,dtype=fp32")
        arrays = {}
        for executor in world:
            for shard in executor.shards("gen"):
                self.assertEqual(shard.dtype, "bf16")
                arrays[executor.rank, shard] = np.zeros(shard.shape, np.uint16)
                executor.bind(shard, arrays[executor.rank, shard])
        whole = whole_tensors(world, 5, np.float32)
        for executor in world:
            for shard in executor.shards("train"):
                with self.assertRaisesRegex(refit.InputError, "found fp64, expected fp32"):
                    executor.bind(shard, np.zeros(shard.shape))
                executor.bind(shard, np.ascontiguousarray(whole[shard.tensor][shard.slices]))
        world.prepare()
        world.run()
        for (_, shard), array in arrays.items():
            bits = whole[shard.tensor][shard.slices].view(np.uint32).astype(np.uint64)
            nearest = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)  # ties to even
            np.testing.assert_array_equal(array, nearest)

    @unittest.skipUnless(importlib.util.find_spec("torch"), "skipped: no torch")
    def test_torch_parameters(self):
        import torch

        world = self.open()
        tensors = {}
        for executor in world:
            for shard in executor.shards():
                value = 1.5 if shard.side == "train" else 0
                tensors[executor.rank, shard] = torch.nn.Parameter(torch.full(shard.shape, value, dtype=torch.bfloat16))
                with self.assertRaisesRegex(refit.InputError, "found fp16, expected bf16"):
                    executor.bind(shard, torch.zeros(shard.shape, dtype=torch.float16))
                executor.bind(shard, tensors[executor.rank, shard])
        world.prepare()
        world.run()
        self.assertEqual({bool((tensor == 1.5).all()) for tensor in tensors.values()}, {True})

    def test_hooks(self):
        said = []
        world = self.open({"before_write": lambda rank: said.append(("stop", rank)), "finalize": lambda rank, names: said.append((len(names), rank)),
                           "after_commit": lambda rank, version: said.append((f"serve {version}", rank))})
        world.prepare()
        world.run(7)
        for rank in range(4, 12):
            mine = [what for what, of in said if of == rank]
            self.assertEqual((mine[0], mine[2]), ("stop", "serve 7"))
            self.assertEqual(mine[1], len(world[rank].shards("gen")))
        self.assertFalse([rank for _, rank in said if rank < 4])  # these only send

    def test_what_a_hook_raises_fails_all_and_comes_out(self):
        def stop(rank):
            if rank == 6:
                raise KeyError("engine is busy")

        world = self.open({"before_write": stop})
        world.prepare()
        with self.assertRaisesRegex(KeyError, "engine is busy"):
            world.run()
        self.assertEqual({executor.state().failed for executor in world}, {True})
        with self.assertRaises(refit.WorkError):
            world.run()

    def test_bad_arrays_are_refused(self):
        world = self.open()
        executor = world[4]
        shard = next(shard for shard in executor.shards("gen") if len(shard.shape) == 2)
        good = np.zeros(shard.shape, np.uint16)
        locked = good.copy()
        locked.flags.writeable = False
        gpu = types.SimpleNamespace(__cuda_array_interface__=good.__array_interface__)
        for array, said in ((np.zeros(shard.shape, np.float16), "found fp16, expected bf16"), (np.zeros(shard.shape, np.float32), "found fp32"),
                            (good.T[:1], "found shape"), (np.zeros(shard.shape, ">u2"), "found type >u2"), (locked, "read-only"),
                            (gpu, "found memory of a GPU"), ([1, 2], "found a list"), (good[::-1], "stride of -")):
            with self.assertRaisesRegex(refit.InputError, said):
                executor.bind(shard, array)
        with self.assertRaisesRegex(refit.InputError, "no.such"):
            executor.bind("no.such.tensor", good)
        with self.assertRaisesRegex(refit.InputError, "gen shard 5"):
            executor.bind(shard.tensor, good, index=5)
        with self.assertRaisesRegex(refit.InputError, "'left'"):
            executor.bind(shard.tensor, good, side="left")
        executor.bind(shard, good)

    def test_wrong_order_is_refused(self):
        world = self.open()
        with self.assertRaisesRegex(refit.InputError, "not prepared"):
            world[0].run()
        world.prepare()
        with self.assertRaisesRegex(refit.InputError, "prepared"):
            world[0].freeze(world[0].shards()[0].tensor)
        with self.assertRaisesRegex(refit.InputError, "a second executor of rank 3"):
            Executor(self.path, 3, world=world)
        world.close()
        with self.assertRaisesRegex(ValueError, "closed"):
            world[0].state()

    def test_frozen_tensors_stay(self):
        world = self.open()
        name = "model.norm.weight"
        for executor in world:
            executor.freeze(name)
        world.prepare()
        world.run()
        with self.assertRaises(refit.InputError):
            world[4].locate(name)

    def test_executor_wants_one_transport(self):
        self.open()
        for arguments in ({}, {"world": object(), "nccl": 1}):
            with self.assertRaisesRegex(refit.InputError, "expected a communicator"):
                Executor(self.path, 0, **arguments)
        with self.assertRaises(refit.InputError):  # no NCCL in this build, or no communicator there
            Executor(self.path, 0, nccl=0)
        with self.assertRaises(refit.InputError):
            Executor(self.path, 12, nccl=0)
        with self.assertRaises(refit.InputError):
            HostWorld(self.path.with_name("none.plan"))


class MemoryTest(unittest.TestCase):
    def test_cuda_array_interface(self):
        array = types.SimpleNamespace(__cuda_array_interface__={"version": 3, "shape": (4, 6), "typestr": "<f4", "data": (4096, False), "strides": (32, 4)})
        self.assertEqual(memory.find(array), memory.Memory(4096, False, True, (4, 6), (8, 1), "fp32", 32))
        array.__cuda_array_interface__.update(typestr="<V2", strides=None)
        self.assertEqual(memory.find(array), memory.Memory(4096, False, True, (4, 6), (6, 1), None, 16))
        array.__cuda_array_interface__.update(strides=(13, 2))
        with self.assertRaisesRegex(refit.InputError, "strides"):
            memory.find(array)

    def test_interfaces_agree(self):
        array = np.zeros((6, 8), np.float32)[1::2, ::3]
        self.assertEqual(memory.find(array), memory.find(OnlyDlpack(array)))
        self.assertEqual(memory.find(array).strides, (16, 3))

    def test_four_bits_lie_in_bytes(self):
        packed = memory.find(np.zeros((4, 8), np.uint8))
        self.assertEqual(memory.match(packed, (4, 16), "fp4_e2m1", "here"), (None, [16, 1]))
        with self.assertRaisesRegex(refit.InputError, "shape"):
            memory.match(packed, (4, 8), "fp4_e2m1", "here")
        with self.assertRaisesRegex(refit.InputError, "stride"):
            memory.match(memory.find(np.zeros((4, 16), np.uint8)[:, ::2]), (4, 16), "fp4_e2m1", "here")


if __name__ == "__main__":
    unittest.main()
