#pragma once

#include <cstddef>
#include <map>
#include <utility>

#include "exec/cast.h"
#include "plans/plan.h"

namespace refit {

/// An end of a transfer: a piece in memory, and the same piece packed, as it is on the wire.
struct Conversion {
  bool casts = false;
  Shard area;  // of the piece, or of the weight that it is made of
  Dtype dtype = Dtype::kBf16;
  std::byte* memory = nullptr;  // where the area's storage begins
  Format format = Format::kNone;
  Output output = Output::kData;
  Dims shape;  // of the weight
  Box box;
  Dtype wire = Dtype::kBf16;
  std::byte* packed = nullptr;  // dense, row-major
};

/// The plan is well-formed.
Conversion make_conversion(const Plan& plan, int32_t rank, const Piece& piece, std::byte* memory,
                           std::byte* packed);

/// Global scales of the weights in memory, by address and shard offset. Good as long as the memory
/// does not change.
using KnownScales = std::map<std::pair<const std::byte*, int64_t>, GlobalScales>;

/// From memory to what is sent, and from what has arrived to memory.
void pack(const Conversion& conversion, KnownScales* known = nullptr);
void unpack(const Conversion& conversion);

/// A local copy: from the memory of one end to that of the other, matrix by matrix through a buffer
/// of its own.
void copy_piece(const Conversion& from, const Conversion& to, KnownScales* known = nullptr);

}  // namespace refit
