#pragma once

#include <cstdint>
#include <vector>

#include "plans/box.h"

namespace refit {

/// Bytes; below this a stripe costs more in messages than it gains in balance.
inline constexpr int64_t kSmallestStripe = int64_t{64} << 10;

/// Takes about `elements` off a box: cuts rows of its first dimension that has more than one, and
/// goes a dimension deeper where one row alone is too large. Returns the pieces taken and what is
/// left, both in row-major order, together tiling the box. `even` keeps extents of the last
/// dimension even (4-bit types). Takes at least one row of the innermost dimension, at most the
/// whole box.
struct Cutting {
  std::vector<Box> taken, left;
};
Cutting cut_box(const Box& box, int64_t elements, bool even);

/// The box in `parts` slices of its first dimension that has more than one row, as equal as rows
/// allow; fewer when there are fewer rows.
std::vector<Box> slice_box(const Box& box, int32_t parts, bool even);

}  // namespace refit
