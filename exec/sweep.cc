#include "exec/sweep.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>

#include "exec/sweep_block.h"

namespace refit {

namespace {

/// A block of threads that this thread plays.
class HostBlock {
 public:
  explicit HostBlock(int32_t blocks) : blocks_(static_cast<uint32_t>(blocks)) {}

  uint32_t draw(uint32_t* counter) { return std::atomic_ref(*counter).fetch_add(1); }
  template <typename T>
  const T& load(const T& item) {
    return item;
  }
  template <typename Work>
  void each(const Work& work) {
    for (int32_t thread = 0; thread < kTileThreads; ++thread) work(thread);
  }
  template <typename Work>
  float largest(const Work& work) {
    float most = 0;
    each([&](int32_t thread) { most = std::max(most, work(thread)); });
    return most;
  }
  void add(uint32_t* slot, float largest) {
    // Of numbers that are not negative the greater one has the greater bits.
    std::atomic_ref found(slot[0]);
    uint32_t before = found;
    while (before < bits_of(largest) && !found.compare_exchange_weak(before, bits_of(largest))) {
    }
    std::atomic_ref(slot[1]).fetch_add(1);
  }
  float await(uint32_t* slot, int32_t tiles) {
    while (std::atomic_ref(slot[1]) < static_cast<uint32_t>(tiles)) std::this_thread::yield();
    return float_of(std::atomic_ref(slot[0]));
  }
  void copy(const TableView& table, int32_t tile) { copy_tile(table, tile); }
  bool is_last(uint32_t* counter) { return std::atomic_ref(*counter).fetch_add(1) == blocks_ - 1; }

 private:
  const uint32_t blocks_;
};

}  // namespace

void run_sweep(const SweepView& sweep, int32_t blocks) {
  if (sweep.casts.tiles == 0) return copy_tiles(sweep.copies);
  const auto run = [&] {
    HostBlock block(blocks);
    run_block(sweep, block);
  };
  std::vector<std::jthread> others;
  for (int32_t block = 1; block < blocks; ++block) others.emplace_back(run);
  run();
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
