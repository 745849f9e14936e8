"""Where arrays of other libraries lie: NumPy's `__array_interface__`, DLPack (PyTorch, CuPy, JAX, ...), `__cuda_array_interface__`."""

from __future__ import annotations

import dataclasses
import re
from typing import Any, Optional, Sequence

from . import _exec
from .errors import InputError

# Bits of an element.
BITS = {"fp64": 64, "fp32": 32, "bf16": 16, "fp16": 16, "fp8_e4m3": 8, "fp8_e5m2": 8, "fp4_e2m1": 4, "e8m0": 8,
        "int64": 64, "int32": 32, "int8": 8, "uint8": 8}
# DLPack's (code, bits).
DLPACK = {(0, 64): "int64", (0, 32): "int32", (0, 8): "int8", (1, 8): "uint8", (2, 64): "fp64", (2, 32): "fp32", (2, 16): "fp16",
          (4, 16): "bf16", (10, 8): "fp8_e4m3", (12, 8): "fp8_e5m2", (14, 8): "e8m0"}
# Type strings of the array interfaces.
TYPES = {"<f8": "fp64", "<f4": "fp32", "<f2": "fp16", "<i8": "int64", "<i4": "int32", "|i1": "int8", "|u1": "uint8"}


@dataclasses.dataclass(frozen=True)
class Memory:
    """An array: strides in elements. `dtype` is None for bits without a meaning (unsigned integers, void) of `bits` each."""

    address: int
    host: bool
    writable: bool
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: Optional[str]
    bits: int


def find(array: Any) -> Memory:
    """Memory of an array of any library. Tensors that require a gradient are detached first."""
    if hasattr(array, "detach"):
        array = array.detach()
    if hasattr(array, "__array_interface__"):
        return _from_interface(array.__array_interface__, host=True)
    if hasattr(array, "__dlpack__"):
        address, host, shape, strides, code, bits, lanes = _exec.describe_dlpack(array.__dlpack__())
        if code == 17:  # kDLFloat4_e2m1fn, `lanes` to an element of the array
            return Memory(address, host, True, tuple(shape), tuple(strides), None, bits * lanes)
        dtype = DLPACK.get((code, bits)) if lanes == 1 else None
        if dtype is None and code != 1:
            raise InputError(f"array: found DLPack type {code} of {bits} bits, expected one of {', '.join(BITS)}")
        return Memory(address, host, True, tuple(shape), tuple(strides), dtype, bits * lanes)
    if hasattr(array, "__cuda_array_interface__"):
        return _from_interface(array.__cuda_array_interface__, host=False)
    raise InputError(f"array: found a {type(array).__name__}, expected __array_interface__, __dlpack__ or __cuda_array_interface__")


def _from_interface(values: dict, host: bool) -> Memory:
    typestr, shape = values["typestr"], tuple(values["shape"])
    raw = re.fullmatch(r"[<|][uV](\d+)", typestr)
    dtype = TYPES.get(typestr)
    if dtype is None and raw is None:
        raise InputError(f"array: found type {typestr}, expected one of {', '.join(TYPES)}, or unsigned integers as raw bits")
    size = int(typestr[2:])
    address, read_only = values["data"]
    strides = values.get("strides") or dense(shape, size)
    if any(stride % size for stride in strides):
        raise InputError(f"array: found strides of {tuple(strides)} bytes, expected multiples of {size}")
    return Memory(address, host, not read_only, shape, tuple(stride // size for stride in strides), dtype, 8 * size)


def dense(shape: Sequence[int], unit: int = 1) -> tuple[int, ...]:
    """Strides of rows one after the other."""
    strides = [unit] * len(shape)
    for d in reversed(range(len(shape) - 1)):
        strides[d] = strides[d + 1] * max(shape[d + 1], 1)
    return tuple(strides)


def match(memory: Memory, shape: Sequence[int], dtype: str, place: str) -> tuple[Optional[str], list[int]]:
    """The dtype to compare with the plan's (None: raw bits) and strides in elements of an array that is to hold a shard of this
    shape and dtype. 4-bit elements lie in bytes, two along the last dimension."""
    bits, raw = BITS[dtype], memory.dtype in (None, "uint8")
    expected, packed = tuple(shape), 1
    if bits == 4 and raw and memory.bits == 8 and shape:
        expected, packed = (*shape[:-1], shape[-1] // 2), 2
        if memory.strides[-1:] != (1,) and expected[-1] > 1:
            raise InputError(f"{place}: found a stride of {memory.strides[-1]} bytes, expected 1 in the last dimension of {dtype}")
    elif memory.bits != bits or not (raw or memory.dtype == dtype):
        raise InputError(f"{place}: found {memory.dtype or f'{memory.bits} raw bits'}, expected {dtype} or raw bits of its size")
    if memory.shape != expected:
        raise InputError(f"{place}: found shape {list(memory.shape)}, expected {list(expected)}")
    strides = [stride * packed for stride in memory.strides]
    if packed == 2:
        strides[-1] = 1
    return None if raw else memory.dtype, strides
