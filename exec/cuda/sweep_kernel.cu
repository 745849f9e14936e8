#include "exec/cast_tile.h"
#include "exec/copy_tile.h"
#include "exec/cuda/bulk_copy.h"
#include "exec/cuda/sweep_kernel.h"

namespace refit {

namespace {

/// A thread's units of a tile: all loads first, then all stores, so that kUnitsPerThread loads are
/// on the way at a time. Not inlined: the widths would share, and spill, one set of registers.
template <typename Unit>
__device__ __noinline__ void copy_units(const CopyBox& box, const TileStart& start) {
  const auto thread = static_cast<int32_t>(threadIdx.x);
  Unit value[kUnitsPerThread];
  if (start.unit_in_run + start.units <= box.run_units) {  // all in one run
    const Unit* from = reinterpret_cast<const Unit*>(box.from + start.from) + start.unit_in_run;
    Unit* to = reinterpret_cast<Unit*>(box.to + start.to) + start.unit_in_run;
#pragma unroll
    for (int32_t i = 0; i < kUnitsPerThread; ++i) {
      const int32_t unit = thread + i * kTileThreads;
      if (unit < start.units) value[i] = from[unit];
    }
#pragma unroll
    for (int32_t i = 0; i < kUnitsPerThread; ++i) {
      const int32_t unit = thread + i * kTileThreads;
      if (unit < start.units) to[unit] = value[i];
    }
    return;
  }
  int64_t to[kUnitsPerThread];
#pragma unroll
  for (int32_t i = 0; i < kUnitsPerThread; ++i) {
    const int32_t unit = thread + i * kTileThreads;
    if (unit >= start.units) continue;
    const UnitPlace place = unit_place(box, start, unit);
    to[i] = place.to;
    value[i] = *reinterpret_cast<const Unit*>(box.from + place.from);
  }
#pragma unroll
  for (int32_t i = 0; i < kUnitsPerThread; ++i) {
    const int32_t unit = thread + i * kTileThreads;
    if (unit < start.units) *reinterpret_cast<Unit*>(box.to + to[i]) = value[i];
  }
}

/// What the threads of a block share.
struct Shared {
  CopyBox copy;
  TileStart start;
  CastBox cast;
  CastMaximum maximum;
  uint32_t largest;  // bits, of a number that is not negative
  int32_t tile;
};

__device__ void copy_tile(const TableView& table, int32_t tile, CopyBox& box, TileStart& start) {
  if (threadIdx.x == 0) {
    box = table.boxes[table.box_of_tile[tile]];
    start = tile_start(box, tile);
  }
  __syncthreads();
  switch (box.width) {
    case 16:
      copy_units<uint4>(box, start);
      break;
    case 8:
      copy_units<uint2>(box, start);
      break;
    case 4:
      copy_units<uint32_t>(box, start);
      break;
    case 2:
      copy_units<uint16_t>(box, start);
      break;
    default:
      copy_units<uint8_t>(box, start);
      break;
  }
}

/// The greatest of all threads' numbers, none of them negative, in shared.largest. Of such numbers
/// the greater one has the greater bits.
__device__ void find_largest(Shared& shared, float mine) {
  if (threadIdx.x == 0) shared.largest = 0;
  __syncthreads();
  const uint32_t of_warp = __reduce_max_sync(0xffffffffU, bits_of(mine));
  if (threadIdx.x % 32 == 0) atomicMax(&shared.largest, of_warp);
  __syncthreads();
}

/// A tile's part of the largest magnitude of a matrix.
__device__ void maximum_tile(const CastView& casts, int32_t tile, Shared& shared) {
  const int32_t slot = casts.maximum_of_tile[tile];
  if (threadIdx.x == 0) shared.maximum = casts.maxima[slot];
  __syncthreads();
  find_largest(shared, matrix_largest(shared.maximum, tile, static_cast<int32_t>(threadIdx.x)));
  if (threadIdx.x == 0) {
    uint32_t* found = casts.counters + kCastCounters + 2 * slot;
    atomicMax(found, shared.largest);
    __threadfence();  // whoever sees the count sees the value
    atomicAdd(found + 1, 1U);
  }
}

__device__ void cast_tile(const CastView& casts, int32_t tile, Shared& shared) {
  const auto thread = static_cast<int32_t>(threadIdx.x);
  if (thread == 0) {
    shared.cast = casts.boxes[casts.box_of_tile[tile]];
    shared.largest = 0;
    if (shared.cast.slot >= 0) {
      // All tiles of the maximum have been drawn by blocks that run and that wait for nothing.
      const volatile uint32_t* found = casts.counters + kCastCounters + 2 * shared.cast.slot;
      const auto tiles = static_cast<uint32_t>(casts.maxima[shared.cast.slot].tiles);
      while (found[1] < tiles) __nanosleep(100);
      __threadfence();
      shared.largest = found[0];
    }
  }
  __syncthreads();
  const CastBox& box = shared.cast;
  if (is_block_tile(box)) {
    find_largest(shared, block_largest(box, tile, thread));
    cast_block(box, tile, thread, float_of(shared.largest));
  } else {
    const float global = box.slot < 0 ? 1 : global_scale(box.format, float_of(shared.largest));
    cast_units(box, tile, thread, global);
  }
}

__device__ void set_mark(int32_t* marker, int32_t mark) {
  if (marker != nullptr && blockIdx.x == 0 && threadIdx.x == 0) {
    *static_cast<volatile int32_t*>(marker) = mark;
  }
}

__global__ void __launch_bounds__(kTileThreads, 3)
    copy_kernel(TableView table, int32_t* marker, int32_t mark) {
  __shared__ CopyBox box;
  __shared__ TileStart start;
  set_mark(marker, mark);
  for (int32_t tile = static_cast<int32_t>(blockIdx.x); tile < table.tiles;
       tile += static_cast<int32_t>(gridDim.x)) {
    __syncthreads();  // nobody reads the last tile's box any more
    copy_tile(table, tile, box, start);
  }
}

__global__ void __launch_bounds__(kTileThreads, 2)
    sweep_kernel(SweepView sweep, int32_t* marker, int32_t mark) {
  __shared__ Shared shared;
  set_mark(marker, mark);
  uint32_t* counters = sweep.casts.counters;
  const int32_t maxima = sweep.casts.maximum_tiles, copies = sweep.copies.tiles;
  while (true) {
    __syncthreads();  // nobody reads the last tile's box any more
    if (threadIdx.x == 0) shared.tile = static_cast<int32_t>(atomicAdd(counters, 1U));
    __syncthreads();
    const int32_t tile = shared.tile;
    if (tile >= maxima + copies + sweep.casts.tiles) break;
    if (tile < maxima) {
      maximum_tile(sweep.casts, tile, shared);
    } else if (tile < maxima + copies) {
      copy_tile(sweep.copies, tile - maxima, shared.copy, shared.start);
    } else {
      cast_tile(sweep.casts, tile - maxima - copies, shared);
    }
  }
  // The last block to end leaves all counters at zero, for the next launch.
  if (threadIdx.x == 0) {
    __threadfence();
    shared.tile = atomicAdd(counters + 1, 1U) == gridDim.x - 1 ? 1 : 0;
  }
  __syncthreads();
  if (shared.tile == 0) return;
  const int32_t count = kCastCounters + 2 * sweep.casts.slots;
  for (auto i = static_cast<int32_t>(threadIdx.x); i < count; i += kTileThreads) counters[i] = 0;
}

template <typename Kernel>
cudaError_t count_blocks(Kernel kernel, int32_t* blocks) {
  int device = 0, multiprocessors = 0, of_each = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error != cudaSuccess) return error;
  error = cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
  if (error != cudaSuccess) return error;
  error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&of_each, kernel, kTileThreads, 0);
  *blocks = multiprocessors * (of_each < 1 ? 1 : of_each);
  return error;
}

}  // namespace

cudaError_t count_sweep_blocks(SweepBlocks* blocks) {
  const cudaError_t error = count_blocks(copy_kernel, &blocks->copies);
  return error != cudaSuccess ? error : count_blocks(sweep_kernel, &blocks->casts);
}

cudaError_t launch_sweep_kernel(const SweepView& sweep, int32_t* marker, int32_t mark,
                                const SweepBlocks& blocks, cudaStream_t stream) {
  const bool casts = sweep.casts.tiles > 0;
  if (!casts && sweep.copies.long_runs && blocks.bulk > 0) {
    return launch_bulk_kernel(sweep.copies, marker, mark, blocks.bulk, stream);
  }
  const int32_t most = casts ? blocks.casts : blocks.copies;
  int32_t tiles = sweep.tiles();
  if (tiles > most) tiles = most;
  if (tiles < 1) tiles = 1;  // the mark alone
  const auto grid = static_cast<unsigned>(tiles);
  if (casts) {
    sweep_kernel<<<grid, kTileThreads, 0, stream>>>(sweep, marker, mark);
  } else {
    copy_kernel<<<grid, kTileThreads, 0, stream>>>(sweep.copies, marker, mark);
  }
  return cudaGetLastError();
}

}  // namespace refit
