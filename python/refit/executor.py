"""Replays a plan between two training steps: the C API (exec/refit_exec.h) for arrays of NumPy, PyTorch, CuPy, ...

On a cluster every rank has its process, its GPU and an NCCL communicator whose ranks are the plan's:

    executor = Executor("job.plan", rank, nccl=communicator)   # address of the ncclComm_t
    for shard in executor.shards("gen"):
        executor.bind(shard, parameters[shard.tensor])         # what is not bound is allocated
    executor.prepare()
    executor.run(stream=torch.cuda.current_stream().cuda_stream)   # after each training step, with all ranks

In one process, with arrays in host memory:

    with HostWorld("job.plan") as world:
        for executor in world:
            ...
        world.prepare()
        world.run()
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import os
from typing import Any, Callable, Iterator, Optional, Union

from . import _exec, memory
from .errors import InputError, WorkError

__all__ = ["Buffer", "Executor", "HostWorld", "Shard", "State"]

PathLike = Union[str, "os.PathLike[str]"]


@dataclasses.dataclass(frozen=True)
class Shard:
    """What a rank holds of a tensor on one side: a box, (lo, hi) for each dimension. `index` counts the rank's shards of it."""

    side: str  # "train" or "gen"
    tensor: str
    index: int
    box: tuple[tuple[int, int], ...]
    dtype: str

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(hi - lo for lo, hi in self.box)

    @property
    def slices(self) -> tuple[slice, ...]:
        """Cuts it out of the whole tensor."""
        return tuple(slice(lo, hi) for lo, hi in self.box)


@dataclasses.dataclass(frozen=True)
class State:
    """`version` is that of the last refit that succeeded on all ranks; `torn` weights may be partly of a later one."""

    version: int
    torn: bool
    failed: bool
    runs: int
    setup_s: float
    refit_s: float
    bytes_received: int
    bytes_copied: int
    staging_bytes: int


class Buffer:
    """Memory that an executor has allocated, valid until it is closed. `numpy.asarray` (on GPUs `cupy.asarray`) sees it without a
    copy; types that NumPy does not have are unsigned integers of their size."""

    def __init__(self, executor: "Executor", shard: Shard, address: int, strides: list[int]):
        self._executor = executor
        self.shard, self.address, self.strides = shard, address, tuple(strides)
        bits = memory.BITS[shard.dtype]
        if bits < 8:
            raise InputError(f"{shard.tensor}: found {shard.dtype}, expected a type of whole bytes: bind memory of your own")
        size = bits // 8
        names = {dtype: typestr for typestr, dtype in memory.TYPES.items()}
        interface = {"version": 3, "shape": shard.shape, "typestr": names.get(shard.dtype, f"{'|' if size == 1 else '<'}u{size}"),
                     "data": (address, False), "strides": tuple(stride * size for stride in strides)}
        setattr(self, "__array_interface__" if executor.on_host else "__cuda_array_interface__", interface)


class Executor:
    """One rank of a plan: on NCCL, or in a `HostWorld`. Calls marked collective return when all ranks have made them."""

    def __init__(self, plan: PathLike, rank: int, *, nccl: Optional[int] = None, world: Optional["HostWorld"] = None, timeout_s: float = 30,
                 graph: bool = True, before_write: Optional[Callable[[], None]] = None,
                 finalize: Optional[Callable[[list[str]], None]] = None, after_commit: Optional[Callable[[int], None]] = None):
        """`nccl`: address of an ncclComm_t, which has to live as long as the executor; on the calling thread's device. Collective
        then. Hooks are called on ranks that receive: `before_write` (stop serving), `finalize` with the names of the tensors that
        are in place, `after_commit` with the version; what the first two raise fails the refit on all ranks."""
        if (nccl is None) == (world is None):
            raise InputError("executor: found " + ("neither" if nccl is None else "both") + ", expected a communicator (nccl) or a world")
        self._plan = _exec.BoundPlan(os.fspath(plan), rank)
        self.rank, self.ranks, count, self.predicted_s, self.digest, self.strategy = self._plan.describe()
        self.on_host = world is not None
        self._shards: dict[tuple[str, str, int], Shard] = {}
        names: list[str] = []
        self._bound: dict[tuple[str, str, int], Any] = {}  # keeps the arrays alive
        for index in range(count):
            name, train_dtype, gen_dtype, shape, train_shards, gen_shards = self._plan.tensor(index)
            names.append(name)
            for side, dtype, shards in (("train", train_dtype, train_shards), ("gen", gen_dtype, gen_shards)):
                for shard in range(shards):
                    box = self._plan.shard(index, side == "train", shard, len(shape))
                    self._shards[side, name, shard] = Shard(side, name, shard, tuple(box), dtype)
        named = None if finalize is None else lambda tensors: finalize([names[t] for t in tensors])
        self._held = _exec.BoundExecutor(self._plan, None if world is None else world._held, nccl or 0, timeout_s, graph, before_write,
                                         named, after_commit)

    def shards(self, side: Optional[str] = None) -> list[Shard]:
        """This rank's, in the order of the plan's tensors; of one side or of both."""
        return [shard for shard in self._shards.values() if side in (None, shard.side)]

    def bind(self, shard: Union[Shard, str], array: Any, *, side: str = "gen", index: int = 0) -> None:
        """The shard lies in this array, which has its shape: a `Shard`, or the tensor's name with side and index. All shards of a
        tensor on a side, or none. Before `prepare`."""
        shard = self._find(shard, side, index)
        place = f"rank {self.rank}, {shard.side} tensor {shard.tensor}"
        found = memory.find(array)
        if found.host != self.on_host:
            raise InputError(f"{place}: found memory of {'the host' if found.host else 'a GPU'}, expected that of {'the host' if self.on_host else 'a GPU'}")
        if shard.side == "gen" and not found.writable:
            raise InputError(f"{place}: found an array that is read-only, expected one that can be written")
        dtype, strides = memory.match(found, shard.shape, shard.dtype, place)
        self._held.bind(shard.tensor, shard.side == "train", shard.index, found.address, dtype, strides)
        self._bound[shard.side, shard.tensor, shard.index] = array

    def freeze(self, tensor: str) -> None:
        """This tensor shall not move. Before `prepare`; all ranks say the same."""
        self._held.freeze(tensor)

    def prepare(self) -> None:
        """Connects and allocates. Collective, once."""
        self._held.prepare()

    def run(self, version: int = 0, *, stream: int = 0) -> None:
        """One refit to `version` (0: one more than now), after the work that `stream` (address of a cudaStream_t) has now.
        Collective. When it fails it fails on all ranks, and the executor can only be closed."""
        self._held.run(version, stream)

    def locate(self, shard: Union[Shard, str], *, side: str = "gen", index: int = 0) -> Buffer:
        """Where a shard lies. After `prepare`."""
        shard = self._find(shard, side, index)
        address, strides = self._held.locate(shard.side == "train", shard.tensor, shard.index, len(shard.box))
        return Buffer(self, shard, address, strides)

    def state(self) -> State:
        return State(**self._held.state())

    def close(self) -> None:
        """Frees what it has allocated."""
        self._held.close()
        self._bound.clear()

    def __enter__(self) -> "Executor":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _find(self, shard: Union[Shard, str], side: str, index: int) -> Shard:
        if isinstance(shard, Shard):
            side, name, index = shard.side, shard.tensor, shard.index
        else:
            name = shard
        found = self._shards.get((side, name, index))
        if found is None:
            if side not in ("train", "gen"):
                raise InputError(f"side: found {side!r}, expected 'train' or 'gen'")
            raise InputError(f"rank {self.rank}: found {side} shard {index} of {name!r}, expected one that the rank has in the plan")
        return found


class HostWorld:
    """All ranks of a plan in this process, a thread each, in host memory. `world[rank]` is an `Executor`. Hooks get the rank first."""

    def __init__(self, plan: PathLike, *, timeout_s: float = 30, before_write: Optional[Callable[[int], None]] = None,
                 finalize: Optional[Callable[[int, list[str]], None]] = None, after_commit: Optional[Callable[[int, int], None]] = None):
        def of(rank: int, hook: Optional[Callable[..., None]]) -> Optional[Callable[..., None]]:
            return None if hook is None else lambda *arguments: hook(rank, *arguments)

        ranks = _exec.BoundPlan(os.fspath(plan), 0).describe()[1]
        self._held = _exec.BoundWorld(ranks, timeout_s)
        self.executors = [Executor(plan, rank, world=self, timeout_s=timeout_s, before_write=of(rank, before_write),
                                   finalize=of(rank, finalize), after_commit=of(rank, after_commit)) for rank in range(ranks)]

    def __len__(self) -> int:
        return len(self.executors)

    def __getitem__(self, rank: int) -> Executor:
        return self.executors[rank]

    def __iter__(self) -> Iterator[Executor]:
        return iter(self.executors)

    def prepare(self) -> None:
        self._together(lambda executor: executor.prepare())

    def run(self, version: int = 0) -> None:
        self._together(lambda executor: executor.run(version))

    def close(self) -> None:
        for executor in self.executors:
            executor.close()

    def __enter__(self) -> "HostWorld":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _together(self, call: Callable[[Executor], None]) -> None:
        with concurrent.futures.ThreadPoolExecutor(len(self.executors)) as threads:
            ended = [future.exception() for future in [threads.submit(call, executor) for executor in self.executors]]
        failures = [failure for failure in ended if failure is not None]
        # All ranks fail when one does; what a hook has raised is the reason.
        failures.sort(key=lambda failure: isinstance(failure, WorkError))
        if failures:
            raise failures[0]
