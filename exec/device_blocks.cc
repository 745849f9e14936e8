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

DeviceBlocks::Tables DeviceBlocks::upload(std::span<const CopyTable* const> tables) {
  std::vector<CopyBox> boxes;
  std::vector<int32_t> box_of_tile;
  for (const CopyTable* table : tables) {
    boxes.insert(boxes.end(), table->boxes.begin(), table->boxes.end());
    box_of_tile.insert(box_of_tile.end(), table->box_of_tile.begin(), table->box_of_tile.end());
  }
  const auto box_bytes = static_cast<int64_t>(boxes.size() * sizeof(CopyBox));
  const auto tile_bytes = static_cast<int64_t>(box_of_tile.size() * sizeof(int32_t));
  Tables uploaded;
  uploaded.bytes = box_bytes + tile_bytes;
  std::byte* at = allocate(uploaded.bytes);
  if (at != nullptr) {
    gpu_.copy(at, reinterpret_cast<const std::byte*>(boxes.data()), box_bytes);
    gpu_.copy(at + box_bytes, reinterpret_cast<const std::byte*>(box_of_tile.data()), tile_bytes);
  }
  const auto* next_box = reinterpret_cast<const CopyBox*>(at);
  const auto* next_tile = reinterpret_cast<const int32_t*>(at + box_bytes);
  for (const CopyTable* table : tables) {
    TableView& placed = uploaded.views.emplace_back();
    if (table->empty()) continue;
    placed = {next_box, next_tile, static_cast<int32_t>(table->box_of_tile.size())};
    next_box += table->boxes.size();
    next_tile += table->box_of_tile.size();
  }
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
