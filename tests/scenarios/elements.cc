#include "tests/scenarios/elements.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"

namespace refit::scenarios {
namespace {

/// Part `index` of `parts` of a sequence.
Numbers part_of(const Numbers& all, int64_t parts, int64_t index, const std::string& rule) {
  const int64_t n = std::ssize(all);
  int64_t lo = 0, hi = 0;
  if (rule == "chunk") {
    const int64_t size = (n + parts - 1) / parts;
    lo = std::min(n, index * size);
    hi = std::min(n, (index + 1) * size);
  } else if (rule == "tensor_split") {
    for (int64_t i = 0; i <= index; ++i) {
      lo = hi;
      hi = lo + n / parts + (i < n % parts ? 1 : 0);
    }
  } else {
    if (rule != "even" || n % parts != 0) fail("split", rule, "a rule that fits");
    lo = index * (n / parts);
    hi = lo + n / parts;
  }
  return {all.begin() + lo, all.begin() + hi};
}

Numbers count_to(int64_t n) {
  Numbers all(static_cast<size_t>(n));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

/// Ids of the product of one index list per dimension.
Local product(const Numbers& shape, const std::vector<Numbers>& lists) {
  Local local;
  local.ids = {0};
  for (size_t dim = 0; dim < shape.size(); ++dim) {
    local.shape.push_back(std::ssize(lists[dim]));
    Numbers next;
    for (const int64_t id : local.ids) {
      for (const int64_t i : lists[dim]) {
        next.push_back(id == kPad || i == kPad ? kPad : id * shape[dim] + i);
      }
    }
    local.ids = std::move(next);
  }
  return local;
}

void add_mesh(const Numbers& shape, const TensorSide& side, int64_t shift,
              std::map<int32_t, Local>& result) {
  Numbers order = side.order.empty() ? count_to(std::ssize(side.mesh)) : side.order;
  for (size_t position = 0; position < side.ranks.size(); ++position) {
    Numbers coordinate(side.mesh.size());
    for (size_t axis = side.mesh.size(), rest = position; axis-- > 0;) {
      coordinate[axis] = static_cast<int64_t>(rest) % side.mesh[axis];
      rest /= static_cast<size_t>(side.mesh[axis]);
    }
    std::vector<Numbers> lists;
    for (const int64_t extent : shape) lists.push_back(count_to(extent));
    for (const int64_t axis : order) {
      const std::string& placement = side.placements[static_cast<size_t>(axis)];
      if (placement == "R") continue;
      const bool strided = placement.starts_with("SS");
      const size_t dim = static_cast<size_t>(std::stoll(placement.substr(strided ? 2 : 1)));
      const int64_t pieces = strided ? std::stoll(placement.substr(placement.find('/') + 1)) : 1;
      Numbers taken;
      for (int64_t piece = 0; piece < pieces; ++piece) {
        const Numbers part = part_of(part_of(lists[dim], pieces, piece, side.split),
                                     side.mesh[static_cast<size_t>(axis)],
                                     coordinate[static_cast<size_t>(axis)], side.split);
        taken.insert(taken.end(), part.begin(), part.end());
      }
      lists[dim] = std::move(taken);
    }
    result[static_cast<int32_t>(side.ranks[position] + shift)] = product(shape, lists);
  }
}

void add_rows(const Numbers& shape, const TensorSide& side, int64_t shift,
              std::map<int32_t, Local>& result) {
  for (const auto& [rank, ranges] : side.rows) {
    std::vector<Numbers> lists;
    for (const int64_t extent : shape) lists.push_back(count_to(extent));
    Numbers& list = lists[static_cast<size_t>(side.dim)];
    list.clear();
    for (const Numbers& range : ranges) {
      for (int64_t i = range[0]; i < range[1]; ++i) list.push_back(i);
    }
    const auto pad = side.pad.find(rank);
    if (pad != side.pad.end()) list.insert(list.end(), static_cast<size_t>(pad->second), kPad);
    result[static_cast<int32_t>(rank + shift)] = product(shape, lists);
  }
}

void add_blocks(const Numbers& shape, const TensorSide& side, int64_t shift,
                std::map<int32_t, Local>& result) {
  for (const auto& [rank, blocks] : side.blocks) {
    Local local{side.local_shape.at(rank), {}};
    int64_t cells = 1;
    for (const int64_t extent : local.shape) cells *= extent;
    local.ids.assign(static_cast<size_t>(cells), kPad);
    for (const Block& block : blocks) {
      int64_t volume = 1;
      for (const Numbers& range : block.box) volume *= range[1] - range[0];
      for (int64_t cell = 0; cell < volume; ++cell) {
        int64_t id = 0, at = 0, rest = cell;
        int64_t id_step = 1, at_step = 1;
        for (size_t dim = shape.size(); dim-- > 0;) {
          const int64_t extent = block.box[dim][1] - block.box[dim][0];
          const int64_t i = rest % extent;
          rest /= extent;
          id += (block.box[dim][0] + i) * id_step;
          at += (block.at[dim] + i) * at_step;
          id_step *= shape[dim];
          at_step *= local.shape[dim];
        }
        local.ids.at(static_cast<size_t>(at)) = id;
      }
    }
    result[static_cast<int32_t>(rank + shift)] = std::move(local);
  }
}

}  // namespace

std::map<int32_t, Local> local_elements(const Numbers& shape, const TensorSide& side) {
  std::map<int32_t, Local> result;
  for (int64_t i = 0; i < side.replicas; ++i) {
    const int64_t shift = i * side.stride;
    if (!side.mesh.empty()) add_mesh(shape, side, shift, result);
    if (!side.rows.empty()) add_rows(shape, side, shift, result);
    if (!side.blocks.empty()) add_blocks(shape, side, shift, result);
  }
  return result;
}

int64_t memory_index(const Numbers& shape, int64_t index, bool column_major) {
  if (!column_major) return index;
  int64_t result = 0;
  Numbers coordinate(shape.size());
  for (size_t dim = shape.size(); dim-- > 0;) {
    coordinate[dim] = index % shape[dim];
    index /= shape[dim];
  }
  int64_t step = 1;
  for (size_t dim = 0; dim < shape.size(); ++dim) {
    result += coordinate[dim] * step;
    step *= shape[dim];
  }
  return result;
}

}  // namespace refit::scenarios
