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

}  // namespace refit
