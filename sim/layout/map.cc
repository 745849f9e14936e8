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

RankMap make_map(const Dims& shape, const Mesh& mesh, std::span<const Placement> placements,
                 Split split, const std::string& place) {
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
    Box box = whole(shape);
    for (size_t axis = 0; axis < axes; ++axis) {
      const int32_t dim = placements[axis].dim;
      if (dim < 0) continue;
      const auto [lo, hi] =
          split_range(box.extent(dim), mesh.size[axis], index[axis], split, axis_place[axis]);
      box.hi[dim] = box.lo[dim] + hi;
      box.lo[dim] += lo;
    }
    if (!box.empty()) {
      map.shards.push_back({rank, {Shard{box, 0, dense_strides(box.extents())}}});
    }
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
