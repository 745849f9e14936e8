#include "exec/copy_table.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

#include "base/error.h"
#include "exec/copy_tile.h"
#include "exec/strided.h"

namespace refit {

namespace {

/// Sizes, in bytes, of what the dimensions of an area repeat: its run, its innermost rows, ... up
/// to the whole.
std::vector<int64_t> block_sizes(const Strided& area) {
  std::vector<int64_t> sizes = {area.run};
  for (int32_t d = area.dims - 1; d >= 0; --d) sizes.push_back(sizes.back() * area.count[d]);
  return sizes;
}

/// How far apart in the area two bytes are whose positions differ by `size`, a block boundary.
int64_t stride_at(const Strided& area, int64_t size) {
  if (size < area.run) return size;
  int64_t block = area.run;
  for (int32_t d = area.dims - 1; d >= 0; --d) {
    if (size < block * area.count[d]) return area.stride[d] * (size / block);
    block *= area.count[d];
  }
  return 0;  // the whole: there is no second one
}

int32_t widest_access(const CopyBox& box, int64_t run) {
  auto bits = static_cast<uint64_t>(run) | std::bit_cast<uintptr_t>(box.from) |
              std::bit_cast<uintptr_t>(box.to) | 16U;
  for (int32_t d = 0; d < box.dims; ++d) {
    bits |= static_cast<uint64_t>(box.from_stride[d]) | static_cast<uint64_t>(box.to_stride[d]);
  }
  return int32_t{1} << std::countr_zero(bits);
}

}  // namespace

int64_t CopyTable::bytes() const {
  int64_t total = 0;
  for (const CopyBox& box : boxes) total += box.bytes();
  return total;
}

bool CopyTable::has_long_runs() const {
  return std::all_of(boxes.begin(), boxes.end(), [](const CopyBox& box) {
    return box.width == 16 && box.run_units >= kLongRunUnits;
  });
}

Strided dense_block(std::byte* base, int64_t bytes) {
  Strided block;
  block.base = base;
  block.run = bytes;
  return block;
}

bool add_copy(CopyTable& table, const Strided& from, const Strided& to) {
  REFIT_CHECK(from.bytes() == to.bytes());
  if (from.bytes() == 0) return true;
  std::vector<int64_t> sizes = block_sizes(from);
  const std::vector<int64_t> others = block_sizes(to);
  sizes.insert(sizes.end(), others.begin(), others.end());
  std::sort(sizes.begin(), sizes.end());
  sizes.erase(std::unique(sizes.begin(), sizes.end()), sizes.end());
  if (std::ssize(sizes) - 1 > kMaxDims) return false;
  for (size_t i = 1; i < sizes.size(); ++i) {
    if (sizes[i] % sizes[i - 1] != 0) return false;
  }

  CopyBox box;
  box.from = from.base;
  box.to = to.base;
  box.dims = static_cast<int32_t>(sizes.size()) - 1;
  for (int32_t d = 0; d < box.dims; ++d) {  // outermost first
    const size_t inner = static_cast<size_t>(box.dims - 1 - d);
    box.count[d] = sizes[inner + 1] / sizes[inner];
    box.from_stride[d] = stride_at(from, sizes[inner]);
    box.to_stride[d] = stride_at(to, sizes[inner]);
  }
  box.width = widest_access(box, sizes.front());
  box.run_units = sizes.front() / box.width;
  box.units = sizes.back() / box.width;
  if (box.run_units > 1 && box.run_units < kTileUnits) {
    const auto units = static_cast<uint64_t>(box.run_units);
    box.run_inverse = static_cast<uint32_t>(((uint64_t{1} << 32) + units - 1) / units);
  }
  const int64_t tiles = (box.units + kTileUnits - 1) / kTileUnits;
  REFIT_CHECK(std::ssize(table.box_of_tile) + tiles <= std::numeric_limits<int32_t>::max());
  box.first_tile = static_cast<int32_t>(table.box_of_tile.size());
  table.box_of_tile.insert(table.box_of_tile.end(), static_cast<size_t>(tiles),
                           static_cast<int32_t>(table.boxes.size()));
  table.boxes.push_back(box);
  return true;
}

TableView view(const CopyTable& table) {
  return {table.boxes.data(), table.box_of_tile.data(),
          static_cast<int32_t>(table.box_of_tile.size()), table.has_long_runs()};
}

void copy_tile(const TableView& table, int32_t tile) {
  const CopyBox& box = table.boxes[table.box_of_tile[tile]];
  const TileStart start = tile_start(box, tile);
  for (int32_t thread = 0; thread < kTileThreads; ++thread) {
    for (int32_t unit = thread; unit < start.units; unit += kTileThreads) {
      const UnitPlace place = unit_place(box, start, unit);
      std::memcpy(box.to + place.to, box.from + place.from, static_cast<size_t>(box.width));
    }
  }
}

void copy_tiles(const TableView& table) {
  for (int32_t tile = 0; tile < table.tiles; ++tile) copy_tile(table, tile);
}

void copy_boxes(const CopyTable& table) {
  for (const CopyBox& box : table.boxes) {
    Strided from, to;
    from.base = const_cast<std::byte*>(box.from);  // an area is read or written as its user likes
    to.base = box.to;
    from.run = to.run = box.run_units * box.width;
    from.dims = to.dims = box.dims;
    for (int32_t d = 0; d < box.dims; ++d) {
      from.count[d] = to.count[d] = box.count[d];
      from.stride[d] = box.from_stride[d];
      to.stride[d] = box.to_stride[d];
    }
    copy_strided({&to, 1}, {&from, 1});
  }
}

}  // namespace refit
