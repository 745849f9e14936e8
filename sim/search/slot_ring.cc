#include "sim/search/slot_ring.h"

#include <iterator>
#include <utility>

namespace refit {

int64_t align_slot(int64_t bytes) {
  return (bytes + kSlotAlignment - 1) / kSlotAlignment * kSlotAlignment;
}

/// The first block that ends after that place.
SlotRing::Blocks::iterator SlotRing::first_after(int64_t place) {
  const auto after = blocks_.upper_bound(place);
  if (after == blocks_.begin()) return after;
  const auto before = std::prev(after);
  return before->second.end > place ? before : after;
}

std::optional<int64_t> SlotRing::find_place(int64_t from, int64_t bytes, double time) {
  int64_t begin = from;
  for (auto block = first_after(begin); block != blocks_.end() && block->first < begin + bytes;
       ++block) {
    if (block->second.arrival.last_read > time) begin = block->second.end;
  }
  return begin + bytes <= capacity_ ? std::optional(begin) : std::nullopt;
}

/// Cuts out what lies there.
void SlotRing::clear(int64_t begin, int64_t end, std::vector<Wait>& waits) {
  for (auto block = first_after(begin); block != blocks_.end() && block->first < end;) {
    const auto [first, old] = *block;
    waits.insert(waits.end(), old.arrival.readers.begin(), old.arrival.readers.end());
    block = blocks_.erase(block);
    if (first < begin) blocks_.emplace(first, Block{begin, old.arrival});
    if (old.end > end) blocks_.emplace(end, old);
  }
}

int64_t SlotRing::add(Arrival arrival, double time, std::vector<Wait>& waits) {
  const int64_t bytes = arrival.bytes;
  std::optional<int64_t> begin = find_place(next_, bytes, time);
  if (!begin) begin = find_place(0, bytes, time);
  if (!begin) begin = std::exchange(capacity_, capacity_ + bytes);
  next_ = *begin + bytes;
  clear(*begin, next_, waits);
  blocks_.emplace(*begin, Block{next_, std::move(arrival)});
  return *begin;
}

}  // namespace refit
