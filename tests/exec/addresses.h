#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "exec/backend.h"

namespace refit::testing {

/// Oracle: where the bytes of an area lie, in order, by counting.
inline std::vector<std::byte*> addresses(const Strided& area) {
  std::vector<std::byte*> list;
  for (int64_t i = 0; i < area.bytes(); ++i) {
    std::byte* at = area.base + i % area.run;
    int64_t row = i / area.run;
    for (int32_t d = area.dims - 1; d >= 0; --d) {
      at += row % area.count[d] * area.stride[d];
      row /= area.count[d];
    }
    list.push_back(at);
  }
  return list;
}

}  // namespace refit::testing
