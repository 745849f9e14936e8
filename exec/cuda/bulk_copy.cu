#include <cuda/ptx>

#include "exec/copy_tile.h"
#include "exec/cuda/bulk_copy.h"

namespace refit {

namespace {

constexpr int32_t kStages = 6;
constexpr int32_t kTileBytes = kTileUnits * 16;
constexpr int32_t kRingBytes = kStages * kTileBytes;

#if __CUDA_ARCH__ >= 900

namespace ptx = cuda::ptx;

/// A tile in its stage of the ring.
struct Stage {
  unsigned char* bytes;
  uint64_t* full;  // an mbarrier: the tile's bytes have arrived
};

/// Calls visit(unit of the tile, place, bytes) for every part of a run that the tile has.
template <typename Visit>
__device__ void visit_parts(const CopyBox& box, int32_t tile, Visit visit) {
  const TileStart start = tile_start(box, tile);
  int64_t in_run = start.unit_in_run;
  for (int64_t unit = 0; unit < start.units; in_run = 0) {
    const int64_t rest = start.units - unit, run = box.run_units - in_run;
    const int64_t units = rest < run ? rest : run;
    visit(unit, unit_place(box, start, static_cast<int32_t>(unit)),
          static_cast<uint32_t>(units * 16));
    unit += units;
  }
}

__device__ void load_tile(const CopyBox& box, int32_t tile, const Stage& stage) {
  uint32_t total = 0;
  visit_parts(box, tile, [&](int64_t, const UnitPlace&, uint32_t bytes) { total += bytes; });
  ptx::mbarrier_arrive_expect_tx(ptx::sem_release, ptx::scope_cta, ptx::space_shared, stage.full,
                                 total);
  visit_parts(box, tile, [&](int64_t unit, const UnitPlace& place, uint32_t bytes) {
    ptx::cp_async_bulk(ptx::space_cluster, ptx::space_global, stage.bytes + unit * 16,
                       box.from + place.from, bytes, stage.full);
  });
}

__device__ void store_tile(const CopyBox& box, int32_t tile, const Stage& stage) {
  visit_parts(box, tile, [&](int64_t unit, const UnitPlace& place, uint32_t bytes) {
    ptx::cp_async_bulk(ptx::space_global, ptx::space_shared, box.to + place.to,
                       stage.bytes + unit * 16, bytes);
  });
  ptx::cp_async_bulk_commit_group();
}

#endif

__global__ void __launch_bounds__(32) bulk_kernel(TableView table, int32_t* marker, int32_t mark) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ __align__(128) unsigned char ring[];
  __shared__ uint64_t full[kStages];
  if (threadIdx.x != 0) return;
  if (marker != nullptr && blockIdx.x == 0) *static_cast<volatile int32_t*>(marker) = mark;
  for (int32_t stage = 0; stage < kStages; ++stage) ptx::mbarrier_init(&full[stage], 1);
  ptx::fence_mbarrier_init(ptx::sem_release, ptx::scope_cluster);

  const auto first = static_cast<int32_t>(blockIdx.x), step = static_cast<int32_t>(gridDim.x);
  const int32_t tiles = first < table.tiles ? (table.tiles - first + step - 1) / step : 0;
  const auto box_of = [&](int32_t k) -> const CopyBox& {
    return table.boxes[table.box_of_tile[first + k * step]];
  };
  const auto stage_of = [&](int32_t k) {
    return Stage{ring + k % kStages * kTileBytes, &full[k % kStages]};
  };
  // Loads run two stages short of the ring ahead: the stage that a load takes was last read by the
  // store before the last one.
  constexpr int32_t kAhead = kStages - 2;
  for (int32_t k = 0; k < kAhead && k < tiles; ++k) {
    load_tile(box_of(k), first + k * step, stage_of(k));
  }
  for (int32_t k = 0; k < tiles; ++k) {
    if (k + kAhead < tiles) {
      ptx::cp_async_bulk_wait_group_read(ptx::n32_t<1>{});
      load_tile(box_of(k + kAhead), first + (k + kAhead) * step, stage_of(k + kAhead));
    }
    const Stage stage = stage_of(k);
    const auto phase = static_cast<uint32_t>(k / kStages % 2);
    while (!ptx::mbarrier_try_wait_parity(stage.full, phase)) {
    }
    store_tile(box_of(k), first + k * step, stage);
  }
  ptx::cp_async_bulk_wait_group(ptx::n32_t<0>{});
#endif
}

}  // namespace

cudaError_t count_bulk_blocks(int32_t* blocks) {
  *blocks = 0;
  int device = 0, major = 0, multiprocessors = 0, of_each = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error != cudaSuccess) return error;
  error = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  if (error != cudaSuccess || major < 9) return error;
  error = cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
  if (error != cudaSuccess) return error;
  error =
      cudaFuncSetAttribute(bulk_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kRingBytes);
  if (error != cudaSuccess) return error;
  error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&of_each, bulk_kernel, 32, kRingBytes);
  if (error == cudaSuccess) *blocks = multiprocessors * of_each;
  return error;
}

cudaError_t launch_bulk_kernel(const TableView& table, int32_t* marker, int32_t mark,
                               int32_t blocks, cudaStream_t stream) {
  int32_t grid = table.tiles < blocks ? table.tiles : blocks;
  if (grid < 1) grid = 1;  // the mark alone
  bulk_kernel<<<static_cast<unsigned>(grid), 32, kRingBytes, stream>>>(table, marker, mark);
  return cudaGetLastError();
}

}  // namespace refit
