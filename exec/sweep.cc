#include "exec/sweep.h"

#include <cstring>

#include "exec/cast_tile.h"

namespace refit {

namespace {

/// A launch's largest magnitude of a matrix, and how many tiles have added to it.
uint32_t* slot_of(const CastView& casts, int32_t slot) {
  return casts.counters + kCastCounters + 2 * slot;
}

void find_maxima(const CastView& casts) {
  for (int32_t tile = 0; tile < casts.maximum_tiles; ++tile) {
    const int32_t slot = casts.maximum_of_tile[tile];
    uint32_t* found = slot_of(casts, slot);
    for (int32_t thread = 0; thread < kTileThreads; ++thread) {
      const float largest = matrix_largest(casts.maxima[slot], tile, thread);
      // Of numbers that are not negative the greater one has the greater bits.
      if (bits_of(largest) > found[0]) found[0] = bits_of(largest);
    }
    ++found[1];
  }
}

void cast_tiles(const CastView& casts) {
  for (int32_t tile = 0; tile < casts.tiles; ++tile) {
    const CastBox& box = casts.boxes[casts.box_of_tile[tile]];
    float largest = box.slot < 0 ? 0 : float_of(slot_of(casts, box.slot)[0]);
    if (is_block_tile(box)) {
      for (int32_t thread = 0; thread < kTileThreads; ++thread) {
        largest = larger(largest, block_largest(box, tile, thread));
      }
    }
    const float global = box.slot < 0 ? 1 : global_scale(box.format, largest);
    for (int32_t thread = 0; thread < kTileThreads; ++thread) {
      if (is_block_tile(box)) {
        cast_block(box, tile, thread, largest);
      } else {
        cast_units(box, tile, thread, global);
      }
    }
  }
}

}  // namespace

void run_sweep(const SweepView& sweep) {
  find_maxima(sweep.casts);
  copy_tiles(sweep.copies);
  cast_tiles(sweep.casts);
  for (int32_t i = 0; i < 2 * sweep.casts.slots; ++i) sweep.casts.counters[kCastCounters + i] = 0;
}

PlacedSweep place_sweep(const Sweep& sweep, std::byte* base, std::byte* image) {
  PlacedSweep placed;
  const auto place = [&]<typename T>(const std::vector<T>& list) -> std::byte* {
    const int64_t at = placed.bytes;
    const auto bytes = static_cast<int64_t>(list.size() * sizeof(T));
    if (image != nullptr && bytes > 0) {
      std::memcpy(image + at, list.data(), static_cast<size_t>(bytes));
    }
    placed.bytes += (bytes + 15) / 16 * 16;
    return base == nullptr ? nullptr : base + at;
  };
  const CopyTable& copies = sweep.copies;
  const CastTable& casts = sweep.casts;
  SweepView& view = placed.view;
  view.copies.boxes = reinterpret_cast<const CopyBox*>(place(copies.boxes));
  view.copies.box_of_tile = reinterpret_cast<const int32_t*>(place(copies.box_of_tile));
  view.copies.tiles = static_cast<int32_t>(copies.box_of_tile.size());
  view.copies.long_runs = copies.has_long_runs();
  if (casts.empty()) return placed;
  view.casts.boxes = reinterpret_cast<const CastBox*>(place(casts.boxes));
  view.casts.box_of_tile = reinterpret_cast<const int32_t*>(place(casts.box_of_tile));
  view.casts.maxima = reinterpret_cast<const CastMaximum*>(place(casts.maxima));
  view.casts.maximum_of_tile = reinterpret_cast<const int32_t*>(place(casts.maximum_of_tile));
  const std::vector<uint32_t> counters(static_cast<size_t>(kCastCounters) +
                                       2 * casts.maxima.size());
  view.casts.counters = reinterpret_cast<uint32_t*>(place(counters));
  view.casts.tiles = static_cast<int32_t>(casts.box_of_tile.size());
  view.casts.maximum_tiles = static_cast<int32_t>(casts.maximum_of_tile.size());
  view.casts.slots = static_cast<int32_t>(casts.maxima.size());
  return placed;
}

}  // namespace refit
