#include "exec/device_blocks.h"

#include <algorithm>
#include <map>

namespace refit {

std::byte* DeviceBlocks::allocate(int64_t bytes) {
  if (bytes == 0) return nullptr;
  return blocks_.emplace_back(gpu_.allocate(bytes), bytes).first;
}

void DeviceBlocks::release_all() {
  for (const auto& [at, bytes] : blocks_) gpu_.release(at);
}

DeviceBlocks::Sweeps DeviceBlocks::upload(std::span<const Sweep* const> sweeps) {
  Sweeps uploaded;
  for (const Sweep* sweep : sweeps) uploaded.bytes += place_sweep(*sweep, nullptr, nullptr).bytes;
  std::vector<std::byte> image(static_cast<size_t>(uploaded.bytes));
  std::byte* base = allocate(uploaded.bytes);
  int64_t at = 0;
  for (const Sweep* sweep : sweeps) {
    const PlacedSweep placed = place_sweep(*sweep, base + at, image.data() + at);
    uploaded.views.push_back(placed.view);
    at += placed.bytes;
  }
  if (at > 0) gpu_.copy(base, image.data(), at);
  return uploaded;
}

std::vector<MemoryRange> DeviceBlocks::find_ranges(std::span<const WireMessage> messages) const {
  std::map<std::byte*, int64_t> touched;  // bytes by address
  for (const WireMessage& message : messages) {
    const auto block = std::find_if(blocks_.begin(), blocks_.end(), [&](const auto& own) {
      return message.at >= own.first && message.at < own.first + own.second;
    });
    const auto [at, bytes] = block == blocks_.end() ? std::pair(message.at, message.bytes) : *block;
    touched[at] = std::max(touched[at], bytes);
  }
  std::vector<MemoryRange> ranges;
  for (const auto& [at, bytes] : touched) {
    if (ranges.empty() || at > ranges.back().last) {
      ranges.push_back({at, at + bytes});
    } else {
      ranges.back().last = std::max(ranges.back().last, at + bytes);
    }
  }
  return ranges;
}

}  // namespace refit
