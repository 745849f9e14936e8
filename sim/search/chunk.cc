#include "sim/search/chunk.h"

#include <algorithm>

#include "base/error.h"

namespace refit {
namespace {

int cut_dim(const Box& box) {
  for (int d = 0; d < box.dims(); ++d) {
    if (box.extent(d) > 1) return d;
  }
  return -1;
}

Box with_range(Box box, int dim, int64_t lo, int64_t hi) {
  box.lo[dim] = lo;
  box.hi[dim] = hi;
  return box;
}

}  // namespace

Cutting cut_box(const Box& box, int64_t elements, bool even) {
  Cutting result;
  Box rest = box;
  int64_t wanted = std::max<int64_t>(elements, 1);
  while (true) {
    if (rest.volume() <= wanted) {
      result.taken.push_back(rest);
      break;
    }
    const int dim = cut_dim(rest);
    REFIT_CHECK(dim >= 0);
    const int64_t row = rest.volume() / rest.extent(dim);
    const int64_t unit = even && dim == rest.dims() - 1 ? 2 : 1;
    int64_t rows = wanted / row / unit * unit;
    if (rows >= 1) {
      const int64_t border = rest.lo[dim] + rows;
      result.taken.push_back(with_range(rest, dim, rest.lo[dim], border));
      result.left.insert(result.left.begin(), with_range(rest, dim, border, rest.hi[dim]));
      break;
    }
    if (row == 1 || cut_dim(with_range(rest, dim, rest.lo[dim], rest.lo[dim] + 1)) < 0) {
      // Innermost rows: the smallest cut there is.
      const int64_t border = std::min(rest.lo[dim] + unit, rest.hi[dim]);
      result.taken.push_back(with_range(rest, dim, rest.lo[dim], border));
      if (border < rest.hi[dim]) {
        result.left.insert(result.left.begin(), with_range(rest, dim, border, rest.hi[dim]));
      }
      break;
    }
    // One row is larger than what is wanted: set the other rows aside and cut inside it.
    result.left.insert(result.left.begin(), with_range(rest, dim, rest.lo[dim] + 1, rest.hi[dim]));
    rest = with_range(rest, dim, rest.lo[dim], rest.lo[dim] + 1);
  }
  return result;
}

std::vector<Box> slice_box(const Box& box, int32_t parts, bool even) {
  const int dim = cut_dim(box);
  if (dim < 0 || parts <= 1) return {box};
  const int64_t unit = even && dim == box.dims() - 1 ? 2 : 1;
  const int64_t rows = box.extent(dim) / unit;
  const int64_t slices = std::clamp<int64_t>(parts, 1, std::max<int64_t>(rows, 1));
  std::vector<Box> result;
  for (int64_t i = 0; i < slices; ++i) {
    const int64_t lo = box.lo[dim] + rows * i / slices * unit;
    const int64_t hi = i + 1 == slices ? box.hi[dim] : box.lo[dim] + rows * (i + 1) / slices * unit;
    result.push_back(with_range(box, dim, lo, hi));
  }
  return result;
}

}  // namespace refit
