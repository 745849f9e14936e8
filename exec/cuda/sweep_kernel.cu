#include "exec/copy_tile.h"
#include "exec/cuda/bulk_copy.h"
#include "exec/cuda/sweep_kernel.h"
#include "exec/sweep_block.h"

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

__device__ void copy_tile_together(const TableView& table, int32_t tile, CopyBox& box,
                                   TileStart& start) {
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

/// What the threads of a block share.
struct Shared {
  CopyBox copy;
  TileStart start;
  CastBox cast;
  CastMaximum maximum;
  uint32_t largest;  // bits, of a number that is not negative: the greater one has the greater bits
  uint32_t number;
};

/// A block as run_block has it (exec/sweep_block.h): all its threads are in the same call.
class DeviceBlock {
 public:
  __device__ explicit DeviceBlock(Shared& shared) : shared_(shared) {}

  __device__ uint32_t draw(uint32_t* counter) {
    __syncthreads();  // nobody uses what the last tile has shared any more
    if (threadIdx.x == 0) shared_.number = atomicAdd(counter, 1U);
    __syncthreads();
    return shared_.number;
  }
  __device__ const CastBox& load(const CastBox& box) {
    if (threadIdx.x == 0) shared_.cast = box;
    __syncthreads();
    return shared_.cast;
  }
  __device__ const CastMaximum& load(const CastMaximum& maximum) {
    if (threadIdx.x == 0) shared_.maximum = maximum;
    __syncthreads();
    return shared_.maximum;
  }
  template <typename Work>
  __device__ void each(const Work& work) {
    work(static_cast<int32_t>(threadIdx.x));
  }
  template <typename Work>
  __device__ float largest(const Work& work) {
    if (threadIdx.x == 0) shared_.largest = 0;
    __syncthreads();
    const float mine = work(static_cast<int32_t>(threadIdx.x));
    const uint32_t of_warp = __reduce_max_sync(0xffffffffU, bits_of(mine));
    if (threadIdx.x % 32 == 0) atomicMax(&shared_.largest, of_warp);
    __syncthreads();
    return float_of(shared_.largest);
  }
  __device__ void add(uint32_t* slot, float largest) {
    if (threadIdx.x != 0) return;
    atomicMax(slot, bits_of(largest));
    __threadfence();  // whoever sees the count sees the value
    atomicAdd(slot + 1, 1U);
  }
  __device__ float await(uint32_t* slot, int32_t tiles) {
    if (threadIdx.x == 0) {
      const volatile uint32_t* found = slot;
      while (found[1] < static_cast<uint32_t>(tiles)) __nanosleep(100);
      __threadfence();
      shared_.largest = found[0];
    }
    __syncthreads();
    return float_of(shared_.largest);
  }
  __device__ void copy(const TableView& table, int32_t tile) {
    copy_tile_together(table, tile, shared_.copy, shared_.start);
  }
  __device__ bool is_last(uint32_t* counter) {
    if (threadIdx.x == 0) {
      __threadfence();
      shared_.number = atomicAdd(counter, 1U);
    }
    __syncthreads();
    return shared_.number == gridDim.x - 1;
  }

 private:
  Shared& shared_;
};

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
    copy_tile_together(table, tile, box, start);
  }
}

__global__ void __launch_bounds__(kTileThreads, 2)
    sweep_kernel(SweepView sweep, int32_t* marker, int32_t mark) {
  __shared__ Shared shared;
  set_mark(marker, mark);
  DeviceBlock block(shared);
  run_block(sweep, block);
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
