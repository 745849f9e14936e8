#pragma once

#include "plans/box.h"

namespace refit {

/// Calls visit(box) for parts of the box with at most two dimensions of more than one element.
template <typename Visit>
void visit_matrices(const Box& box, Visit visit) {
  if (box.empty()) return;
  Box part = box;
  const int outer = box.dims() - 2;
  for (int dim = 0; dim < outer; ++dim) part.hi[dim] = part.lo[dim] + 1;
  while (true) {
    visit(part);
    int dim = outer - 1;
    for (; dim >= 0; --dim) {
      ++part.lo[dim];
      ++part.hi[dim];
      if (part.lo[dim] < box.hi[dim]) break;
      part.lo[dim] = box.lo[dim];
      part.hi[dim] = part.lo[dim] + 1;
    }
    if (dim < 0) return;
  }
}

/// Calls visit(point) for every point of the box, the last dimension fastest.
template <typename Visit>
void visit_points(const Box& box, Visit visit) {
  Dims at = box.lo;
  while (true) {
    visit(at);
    int dim = box.dims() - 1;
    while (dim >= 0 && ++at[dim] == box.hi[dim]) {
      at[dim] = box.lo[dim];
      --dim;
    }
    if (dim < 0) return;
  }
}

/// Calls visit(first element, elements) for every row of the box, which is not empty.
template <typename Visit>
void visit_rows(const Box& box, Visit visit) {
  const int outer = box.dims() - 1;  // dimensions before the row's
  const int64_t count = outer < 0 ? 1 : box.extent(outer);
  Dims at = box.lo;
  while (true) {
    visit(at, count);
    int dim = outer - 1;
    while (dim >= 0 && ++at[dim] == box.hi[dim]) {
      at[dim] = box.lo[dim];
      --dim;
    }
    if (dim < 0) return;
  }
}

}  // namespace refit
