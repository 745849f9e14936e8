#pragma once

#include "plans/box.h"

namespace refit {

/// Calls visit(point) for every point of the box, the last dimension fastest. Not for empty boxes.
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
  const int row = box.dims() - 1;
  const int64_t count = row < 0 ? 1 : box.extent(row);
  Box firsts = box;
  if (row >= 0) firsts.hi[row] = firsts.lo[row] + 1;
  visit_points(firsts, [&](const Dims& at) { visit(at, count); });
}

/// The box without its dimensions from `count` on.
inline Box outer_box(const Box& box, int count) {
  Box outer;
  outer.lo.count = outer.hi.count = count;
  for (int dim = 0; dim < count; ++dim) {
    outer.lo[dim] = box.lo[dim];
    outer.hi[dim] = box.hi[dim];
  }
  return outer;
}

/// Calls visit(box) for parts of the box with at most two dimensions of more than one element.
template <typename Visit>
void visit_matrices(const Box& box, Visit visit) {
  if (box.empty()) return;
  const int outer = box.dims() < 2 ? 0 : box.dims() - 2;
  Box part = box;
  visit_points(outer_box(box, outer), [&](const Dims& at) {
    for (int dim = 0; dim < outer; ++dim) {
      part.lo[dim] = at[dim];
      part.hi[dim] = at[dim] + 1;
    }
    visit(part);
  });
}

}  // namespace refit
