#include "plans/box.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "base/error.h"

namespace refit {
namespace {

Dims uniform(int32_t count, int64_t value) {
  Dims dims;
  dims.count = count;
  for (int dim = 0; dim < count; ++dim) dims[dim] = value;
  return dims;
}

// A corner of a box: its position as one number that sorts as the coordinates do, and its sign in
// the mixed difference.
struct Corner {
  uint64_t position;
  int64_t sign;
};

// Do boxes that differ along one dimension only lie there one behind the other, and fill the area?
bool tile_once(const Box& area, std::span<const Box> boxes, int dim) {
  std::vector<std::pair<int64_t, int64_t>> ranges;
  ranges.reserve(boxes.size());
  for (const Box& box : boxes) {
    if (!box.empty()) ranges.emplace_back(box.lo[dim], box.hi[dim]);
  }
  if (!std::is_sorted(ranges.begin(), ranges.end())) std::sort(ranges.begin(), ranges.end());
  int64_t reached = area.lo[dim];
  for (const auto& [lo, hi] : ranges) {
    if (lo != reached) return false;
    reached = hi;
  }
  return reached == area.hi[dim];
}

}  // namespace

Dims::Dims(std::initializer_list<int64_t> values)
    : Dims(std::span<const int64_t>(values.begin(), values.size())) {}

Dims::Dims(std::span<const int64_t> values) : count(static_cast<int32_t>(values.size())) {
  REFIT_CHECK(values.size() <= static_cast<size_t>(kMaxDims));
  std::copy(values.begin(), values.end(), value.begin());
}

int64_t Dims::product() const {
  int64_t result = 1;
  for (int dim = 0; dim < count; ++dim) result *= (*this)[dim];
  return result;
}

Dims Box::extents() const {
  Dims result = uniform(dims(), 0);
  for (int dim = 0; dim < dims(); ++dim) result[dim] = extent(dim);
  return result;
}

Box whole(const Dims& shape) { return {uniform(shape.count, 0), shape}; }

std::string print_box(const Box& box) {
  std::string text = "[";
  for (int dim = 0; dim < box.dims(); ++dim) {
    if (dim > 0) text += ", ";
    text += fmt::format("{}:{}", box.lo[dim], box.hi[dim]);
  }
  return text + "]";
}

Box intersect(const Box& a, const Box& b) {
  REFIT_CHECK(a.dims() == b.dims());
  Box common = a;
  for (int dim = 0; dim < a.dims(); ++dim) {
    common.lo[dim] = std::max(a.lo[dim], b.lo[dim]);
    common.hi[dim] = std::min(a.hi[dim], b.hi[dim]);
    if (common.extent(dim) <= 0) return {uniform(a.dims(), 0), uniform(a.dims(), 0)};
  }
  return common;
}

bool overlap(const Box& a, const Box& b) {
  REFIT_CHECK(a.dims() == b.dims());
  for (int dim = 0; dim < a.dims(); ++dim) {
    if (std::max(a.lo[dim], b.lo[dim]) >= std::min(a.hi[dim], b.hi[dim])) return false;
  }
  return true;
}

Dims dense_strides(const Dims& shape) {
  Dims strides = uniform(shape.count, 1);
  for (int dim = shape.count - 2; dim >= 0; --dim) {
    strides[dim] = strides[dim + 1] * shape[dim + 1];
  }
  return strides;
}

bool covers_once(const Box& area, std::span<const Box> boxes, Uncovered* wrong) {
  if (area.empty() || (boxes.size() == 1 && boxes.front() == area)) return true;

  // Along a dimension that no box cuts, coverage is constant: it plays no part.
  std::array<int, kMaxDims> cut{};
  int cuts = 0;
  for (int dim = 0; dim < area.dims(); ++dim) {
    const bool is_cut = std::any_of(boxes.begin(), boxes.end(), [&](const Box& box) {
      return !box.empty() && (box.lo[dim] != area.lo[dim] || box.hi[dim] != area.hi[dim]);
    });
    if (is_cut) cut[static_cast<size_t>(cuts++)] = dim;
  }
  if (cuts == 1 && tile_once(area, boxes, cut[0])) return true;
  // Position of a corner: mixed radix, one digit more than the extent, since hi is a position too.
  std::array<uint64_t, kMaxDims> weight{};
  uint64_t positions = 1;
  for (int i = cuts - 1; i >= 0; --i) {
    weight[static_cast<size_t>(i)] = positions;
    const auto radix = static_cast<uint64_t>(area.extent(cut[static_cast<size_t>(i)])) + 1;
    REFIT_CHECK(!__builtin_mul_overflow(positions, radix, &positions));
  }

  std::vector<Corner> corners;
  corners.reserve((boxes.size() + 1) << cuts);
  const auto add_corners = [&](const Box& box, int64_t sign) {
    for (uint32_t mask = 0; mask < (1U << cuts); ++mask) {
      Corner corner{0, sign};
      for (int i = 0; i < cuts; ++i) {
        const bool high = (mask >> i & 1U) != 0;
        const int dim = cut[static_cast<size_t>(i)];
        const int64_t at = (high ? box.hi[dim] : box.lo[dim]) - area.lo[dim];
        corner.position += static_cast<uint64_t>(at) * weight[static_cast<size_t>(i)];
        if (high) corner.sign = -corner.sign;
      }
      corners.push_back(corner);
    }
  };
  for (const Box& box : boxes) {
    REFIT_CHECK(contains(area, box));
    if (!box.empty()) add_corners(box, 1);
  }
  add_corners(area, -1);
  std::sort(corners.begin(), corners.end(),
            [](const Corner& a, const Corner& b) { return a.position < b.position; });

  for (size_t i = 0; i < corners.size();) {
    const uint64_t position = corners[i].position;
    int64_t sum = 0;
    for (; i < corners.size() && corners[i].position == position; ++i) sum += corners[i].sign;
    if (sum == 0) continue;
    // All points before this one are covered once, so the difference here is the coverage's own
    // excess.
    if (wrong != nullptr) {
      wrong->point = area.lo;
      wrong->times = sum + 1;
      uint64_t rest = position;
      for (int j = 0; j < cuts; ++j) {
        const auto digit = static_cast<size_t>(j);
        wrong->point[cut[digit]] += static_cast<int64_t>(rest / weight[digit]);
        rest %= weight[digit];
      }
    }
    return false;
  }
  return true;
}

}  // namespace refit
