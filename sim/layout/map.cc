#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "sim/layout/layout.h"

namespace refit {

std::pair<int64_t, int64_t> split_range(int64_t n, int64_t parts, int64_t index, Split split,
                                        const std::string& place) {
  REFIT_CHECK(n >= 0 && parts > 0 && index >= 0 && index < parts);
  switch (split) {
    case Split::kEven: {
      if (n % parts != 0) {
        fail(place, fmt::format("extent {}", n), fmt::format("a multiple of {}", parts));
      }
      const int64_t part = n / parts;
      return {index * part, (index + 1) * part};
    }
    case Split::kChunk: {
      const int64_t part = (n + parts - 1) / parts;
      return {std::min(n, index * part), std::min(n, (index + 1) * part)};
    }
    case Split::kBalanced: {
      const int64_t part = n / parts, longer = n % parts;
      const int64_t lo = index * part + std::min(index, longer);
      return {lo, lo + part + (index < longer ? 1 : 0)};
    }
  }
  REFIT_CHECK(false);
  return {};
}

namespace {

int64_t length(const Ranges& ranges) {
  int64_t total = 0;
  for (const auto& [lo, hi] : ranges) total += hi - lo;
  return total;
}

/// Appends what lies at positions [first, last) of `ranges`, joined to the end where they touch.
void append_slice(const Ranges& ranges, int64_t first, int64_t last, Ranges& out) {
  int64_t position = 0;  // of the range's begin
  for (const auto& [lo, hi] : ranges) {
    const int64_t from = lo + std::max<int64_t>(first - position, 0);
    const int64_t to = std::min(hi, lo + last - position);
    position += hi - lo;
    if (from >= to) continue;
    if (!out.empty() && out.back().second == from) {
      out.back().second = to;
    } else {
      out.emplace_back(from, to);
    }
  }
}

/// The part of `ranges` with this index on an axis of `parts`.
Ranges cut(const Ranges& ranges, int32_t parts, int32_t index, const Placement& placement,
           Split split, const std::string& place) {
  Ranges result;
  const int64_t n = length(ranges);
  if (placement.padded > 0) {
    const auto [lo, hi] = split_range(placement.padded, parts, index, split, place);
    append_slice(ranges, std::min(lo, n), std::min(hi, n), result);
    return result;
  }
  const auto cut_piece = [&](int64_t begin, int64_t end) {
    const auto [lo, hi] = split_range(end - begin, parts, index, split, place);
    append_slice(ranges, begin + lo, begin + hi, result);
  };
  if (!placement.blocks.empty()) {
    int64_t begin = 0;
    for (const int64_t extent : placement.blocks) {
      cut_piece(begin, begin + extent);
      begin += extent;
    }
    REFIT_CHECK(begin == n);
    return result;
  }
  for (int32_t piece = 0; piece < placement.pieces; ++piece) {
    const auto [begin, end] = split_range(n, placement.pieces, piece, split, place);
    cut_piece(begin, end);
  }
  return result;
}

}  // namespace

std::vector<Shard> gather_shards(std::span<const Ranges> ranges, Storage storage) {
  Dims extents;
  extents.count = static_cast<int32_t>(ranges.size());
  for (int dim = 0; dim < extents.count; ++dim)
    extents[dim] = length(ranges[static_cast<size_t>(dim)]);
  Dims stride = dense_strides(extents);
  if (storage == Storage::kColumnMajor) {
    int64_t step = 1;
    for (int dim = 0; dim < extents.count; ++dim) {
      stride[dim] = step;
      step *= extents[dim];
    }
  }
  Shard whole_buffer;
  whole_buffer.box.lo.count = whole_buffer.box.hi.count = extents.count;
  whole_buffer.stride = stride;
  std::vector<Shard> shards{whole_buffer};
  for (int dim = 0; dim < extents.count; ++dim) {
    std::vector<Shard> next;
    for (const Shard& shard : shards) {
      int64_t position = 0;
      for (const auto& [lo, hi] : ranges[static_cast<size_t>(dim)]) {
        if (lo == hi) continue;
        Shard part = shard;
        part.box.lo[dim] = lo;
        part.box.hi[dim] = hi;
        part.offset += position * stride[dim];
        position += hi - lo;
        next.push_back(part);
      }
    }
    shards = std::move(next);
  }
  return shards;
}

RankMap make_map(const Dims& shape, const Mesh& mesh, std::span<const Placement> placements,
                 Split split, const std::string& place, Storage storage) {
  const size_t axes = mesh.axis.size();
  REFIT_CHECK(mesh.size.size() == axes && placements.size() == axes);

  std::vector<std::string> axis_place(axes);
  for (size_t axis = 0; axis < axes; ++axis) {
    const int32_t dim = placements[axis].dim;
    if (dim < 0) continue;
    if (dim >= shape.count) {
      fail(place, fmt::format("{} dimensions", shape.count),
           fmt::format("at least {}, to be cut by {}", dim + 1, mesh.axis[axis]));
    }
    axis_place[axis] =
        fmt::format("{}, dimension {} over {}={}", place, dim, mesh.axis[axis], mesh.size[axis]);
  }

  RankMap map;
  std::vector<int32_t> index(axes, 0);  // of the rank in the mesh
  for (const int32_t rank : mesh.ranks) {
    std::vector<Ranges> ranges;
    for (int dim = 0; dim < shape.count; ++dim) ranges.push_back({{0, shape[dim]}});
    for (size_t axis = 0; axis < axes; ++axis) {
      const Placement& placement = placements[axis];
      if (placement.dim < 0) continue;
      Ranges& held = ranges[static_cast<size_t>(placement.dim)];
      held = cut(held, mesh.size[axis], index[axis], placement, split, axis_place[axis]);
    }
    std::vector<Shard> shards = gather_shards(ranges, storage);
    if (!shards.empty()) map.shards.emplace_back(rank, std::move(shards));
    for (size_t axis = axes; axis-- > 0;) {  // the next rank's index
      if (++index[axis] < mesh.size[axis]) break;
      index[axis] = 0;
    }
  }
  // All back at zero: there are as many ranks as the axes say.
  REFIT_CHECK(std::all_of(index.begin(), index.end(), [](int32_t i) { return i == 0; }));
  std::sort(map.shards.begin(), map.shards.end(),
            [](const auto& a, const auto& b) { return a.first < b.first; });
  return map;
}

}  // namespace refit
