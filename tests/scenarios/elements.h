#pragma once

#include <cstdint>
#include <map>

#include "tests/scenarios/scenario.h"

namespace refit::scenarios {

// What ranks hold, element by element: the simplest reading of the scenarios' vocabulary (method A
// of expected.py), which shares nothing with the layouts under test.

/// A rank's local buffer, row-major: row-major element ids of the tensor, kPad where it holds none.
struct Local {
  Numbers shape;
  Numbers ids;
};
inline constexpr int64_t kPad = -1;

std::map<int32_t, Local> local_elements(const Numbers& shape, const TensorSide& side);

/// Where the row-major cell `index` of a local buffer of this shape lies in memory.
int64_t memory_index(const Numbers& shape, int64_t index, bool column_major);

}  // namespace refit::scenarios
