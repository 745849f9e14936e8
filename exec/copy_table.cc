#include "exec/copy_table.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <optional>

#include "base/error.h"
#include "exec/copy_tile.h"
#include "exec/strided.h"

namespace refit {

namespace {

/// Sizes, in bytes, of what the dimensions of an area repeat: its run, its innermost rows, ... up to
/// the whole.
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
          static_cast<int32_t>(table.box_of_tile.size())};
}

void copy_tiles(const TableView& table) {
  for (int32_t tile = 0; tile < table.tiles; ++tile) {
    const CopyBox& box = table.boxes[table.box_of_tile[tile]];
    const TileStart start = tile_start(box, tile);
    for (int32_t thread = 0; thread < kTileThreads; ++thread) {
      for (int32_t unit = thread; unit < start.units; unit += kTileThreads) {
        const UnitPlace place = unit_place(box, start, unit);
        std::memcpy(box.to + place.to, box.from + place.from, static_cast<size_t>(box.width));
      }
    }
  }
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

namespace {

/// The boxes of the part as one run of bytes, or nothing. Neighbours count as one.
std::optional<Strided> as_one_run(const Part& part) {
  if (part.boxes.empty() || part.boxes.front().dims != 0) return std::nullopt;
  Strided all = part.boxes.front();
  for (size_t i = 1; i < part.boxes.size(); ++i) {
    const Strided& box = part.boxes[i];
    if (box.dims != 0 || box.base != all.base + all.run) return std::nullopt;
    all.run += box.run;
  }
  return all;
}

/// Copies box by box, when the two ends are cut alike.
bool add_local_copy(CopyTable& table, const Part& from, const Part& to) {
  if (from.boxes.size() != to.boxes.size()) return false;
  CopyTable trial = table;
  for (size_t i = 0; i < from.boxes.size(); ++i) {
    if (from.boxes[i].bytes() != to.boxes[i].bytes()) return false;
    if (!add_copy(trial, from.boxes[i], to.boxes[i])) return false;
  }
  table = std::move(trial);
  return true;
}

/// One step's use of the packing buffer. With no buffer it only counts.
class Packer {
 public:
  explicit Packer(std::byte* base) : base_(base) {}

  std::byte* take(int64_t bytes) {
    std::byte* at = base_ == nullptr ? nullptr : base_ + used_;
    used_ += align(bytes);
    return at;
  }
  int64_t used() const { return used_; }

 private:
  std::byte* base_;
  int64_t used_ = 0;
};

void add_packing(CopyTable& table, const Part& part, std::byte* packed) {
  for (const Strided& box : part.boxes) {
    REFIT_CHECK(add_copy(table, box, dense_block(packed, box.bytes())));
    packed += box.bytes();
  }
}

void add_unpacking(CopyTable& table, const Part& part, std::byte* packed) {
  for (const Strided& box : part.boxes) {
    REFIT_CHECK(add_copy(table, dense_block(packed, box.bytes()), box));
    packed += box.bytes();
  }
}

const Part* find_local(const std::vector<Part>& parts, int32_t rank) {
  const auto at =
      std::find_if(parts.begin(), parts.end(), [&](const Part& part) { return part.peer == rank; });
  return at == parts.end() ? nullptr : &*at;
}

/// Lays the step out; `step` may be null to count only.
int64_t lay_out(const Group& group, int32_t rank, std::byte* packing, DeviceStep* step) {
  Packer packer(packing);
  for (const Part& part : group.sends) {
    if (part.peer == rank || part.bytes == 0) continue;
    const std::optional<Strided> run = as_one_run(part);
    std::byte* at = run ? run->base : packer.take(part.bytes);
    if (step == nullptr) continue;
    if (!run) add_packing(step->before, part, at);
    step->sends.push_back({part.peer, at, part.bytes});
  }
  for (const Part& part : group.recvs) {
    if (part.peer == rank || part.bytes == 0) continue;
    const std::optional<Strided> run = as_one_run(part);
    std::byte* at = run ? run->base : packer.take(part.bytes);
    if (step == nullptr) continue;
    if (!run) add_unpacking(step->after, part, at);
    step->recvs.push_back({part.peer, at, part.bytes});
  }
  const Part* from = find_local(group.sends, rank);
  const Part* to = find_local(group.recvs, rank);
  if (from == nullptr && to == nullptr) return packer.used();
  if (from == nullptr || to == nullptr || from->bytes != to->bytes) {
    fail("local copy", "one end without the other, or of another size", "two ends of equal size");
  }
  CopyTable trial;
  if (add_local_copy(step == nullptr ? trial : step->before, *from, *to)) return packer.used();
  std::byte* at = packer.take(from->bytes);
  if (step != nullptr) {
    add_packing(step->before, *from, at);
    add_unpacking(step->after, *to, at);
  }
  return packer.used();
}

}  // namespace

int64_t packing_bytes(const Group& group, int32_t rank) {
  return lay_out(group, rank, nullptr, nullptr);
}

DeviceStep make_device_step(const Group& group, int32_t rank, std::byte* packing) {
  DeviceStep step;
  lay_out(group, rank, packing, &step);
  return step;
}

}  // namespace refit
