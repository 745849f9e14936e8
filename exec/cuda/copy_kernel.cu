#include "exec/copy_tile.h"
#include "exec/cuda/copy_kernel.h"

namespace refit {

namespace {

/// A thread's units of a tile: all loads first, then all stores, so that kUnitsPerThread loads are
/// on the way at a time.
template <typename Unit>
__device__ void copy_units(const CopyBox& box, const TileStart& start) {
  Unit value[kUnitsPerThread];
  int64_t to[kUnitsPerThread];
#pragma unroll
  for (int32_t i = 0; i < kUnitsPerThread; ++i) {
    const int32_t unit = static_cast<int32_t>(threadIdx.x) + i * kTileThreads;
    if (unit >= start.units) continue;
    const UnitPlace place = unit_place(box, start, unit);
    to[i] = place.to;
    value[i] = *reinterpret_cast<const Unit*>(box.from + place.from);
  }
#pragma unroll
  for (int32_t i = 0; i < kUnitsPerThread; ++i) {
    const int32_t unit = static_cast<int32_t>(threadIdx.x) + i * kTileThreads;
    if (unit < start.units) *reinterpret_cast<Unit*>(box.to + to[i]) = value[i];
  }
}

__global__ void __launch_bounds__(kTileThreads)
    copy_kernel(TableView table, int32_t* marker, int32_t mark) {
  __shared__ CopyBox box;
  __shared__ TileStart start;
  if (marker != nullptr && blockIdx.x == 0 && threadIdx.x == 0) {
    *static_cast<volatile int32_t*>(marker) = mark;
  }
  for (int32_t tile = static_cast<int32_t>(blockIdx.x); tile < table.tiles;
       tile += static_cast<int32_t>(gridDim.x)) {
    __syncthreads();  // nobody reads the last tile's box any more
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
}

}  // namespace

cudaError_t launch_copy_kernel(const TableView& table, int32_t* marker, int32_t mark,
                               int32_t blocks, cudaStream_t stream) {
  int32_t grid = table.tiles < blocks ? table.tiles : blocks;
  if (grid < 1) grid = 1;  // the mark alone
  copy_kernel<<<static_cast<unsigned>(grid), kTileThreads, 0, stream>>>(table, marker, mark);
  return cudaGetLastError();
}

cudaError_t count_copy_blocks(int32_t* blocks) {
  int device = 0, multiprocessors = 0, of_each = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error != cudaSuccess) return error;
  error = cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
  if (error != cudaSuccess) return error;
  error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&of_each, copy_kernel, kTileThreads, 0);
  *blocks = multiprocessors * (of_each < 1 ? 1 : of_each);
  return error;
}

}  // namespace refit
