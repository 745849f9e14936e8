#pragma once

#include "exec/cast_tile.h"
#include "exec/sweep.h"

namespace refit {

/// A launch's largest magnitude of a matrix, as bits, and how many tiles have added to it.
REFIT_HOST_DEVICE inline uint32_t* slot_of(const CastView& casts, int32_t slot) {
  return casts.counters + kCastCounters + 2 * slot;
}

/// What a block of threads does in a sweep with casts; blocks do it side by side. On a device all
/// threads of the block run it together, on the host (run_sweep) one thread runs it for all of
/// them. The block has:
///
///   draw(counter)         the number that the counter had, one more for the next one
///   load(item)            a copy that its threads share, until the next draw
///   each(work)            work(thread) for every thread
///   largest(work)         the greatest of work(thread), none of them negative
///   add(slot, largest)    adds a tile's largest magnitude to those of the matrix
///   await(slot, tiles)    the largest magnitude, once so many tiles have added theirs
///   copy(table, tile)     a tile of copies
///   is_last(counter)      is it the last one of all blocks that ask?
///
/// What a block waits for has been drawn by a block that runs and waits for nothing: so all end,
/// however few blocks run at a time.
template <typename Block>
REFIT_DEVICE void run_block(const SweepView& sweep, Block& block) {
  const CastView& casts = sweep.casts;
  const int32_t maxima = casts.maximum_tiles, copies = sweep.copies.tiles;
  while (true) {
    int32_t tile = static_cast<int32_t>(block.draw(casts.counters));
    if (tile >= maxima + copies + casts.tiles) break;
    if (tile < maxima) {
      const int32_t slot = casts.maximum_of_tile[tile];
      const CastMaximum& maximum = block.load(casts.maxima[slot]);
      const float largest =
          block.largest([&](int32_t thread) { return matrix_largest(maximum, tile, thread); });
      block.add(slot_of(casts, slot), largest);
      continue;
    }
    tile -= maxima;
    if (tile < copies) {
      block.copy(sweep.copies, tile);
      continue;
    }
    tile -= copies;
    const CastBox& box = block.load(casts.boxes[casts.box_of_tile[tile]]);
    if (is_block_tile(box)) {
      const float largest =
          block.largest([&](int32_t thread) { return block_largest(box, tile, thread); });
      block.each([&](int32_t thread) { cast_block(box, tile, thread, largest); });
      continue;
    }
    float global = 1;
    if (box.slot >= 0) {
      global = global_scale(box.format,
                            block.await(slot_of(casts, box.slot), casts.maxima[box.slot].tiles));
    }
    block.each([&](int32_t thread) { cast_units(box, tile, thread, global); });
  }
  // The last one leaves all counters at zero, for the next launch.
  if (!block.is_last(casts.counters + 1)) return;
  block.each([&](int32_t thread) {
    const int32_t count = kCastCounters + 2 * casts.slots;
    for (int32_t i = thread; i < count; i += kTileThreads) casts.counters[i] = 0;
  });
}

}  // namespace refit
