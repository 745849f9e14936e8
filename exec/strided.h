#pragma once

#include <cstddef>
#include <span>

#include "exec/backend.h"
#include "plans/plan.h"

namespace refit {

/// The memory of `box`, a part of `area` whose storage begins at `base`, with as few dimensions and
/// as long runs as the strides allow. Throws Error when the box is empty or outside of the area, or
/// when its runs are not whole bytes (4-bit types).
Strided resolve(const Shard& area, const Box& box, Dtype dtype, std::byte* base);

/// Copies the bytes of `from`, box after box, to those of `to`. Both have equally many bytes and do
/// not overlap; how they are cut into boxes and runs may differ.
void copy_strided(std::span<const Strided> to, std::span<const Strided> from);

}  // namespace refit
