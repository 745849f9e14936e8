#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string_view>
#include <vector>

#include "exec/executor.h"
#include "plans/plan.h"

namespace refit {

/// A user's memory for one shard.
struct BoundShard {
  std::byte* data = nullptr;  // of its first element
  Dims stride;                // elements
};

/// Where a user wants the tensors of one rank: by (tensor, shard), for each side.
struct Bindings {
  std::map<std::pair<int32_t, int32_t>, BoundShard> train, gen;
};

/// Index of the tensor; throws Error for a name that the plan does not have.
int32_t find_tensor(const Plan& plan, std::string_view name);

/// Adds one; throws Error when the rank has no such shard, the dtype (empty: any) is another, or
/// strides are negative. Empty `strides`: dense.
void add_binding(const Plan& plan, int32_t rank, Side side, int32_t tensor, int32_t shard,
                 std::byte* data, std::string_view dtype, std::span<const int64_t> strides,
                 Bindings& bindings);

/// Makes the rank's part of the plan that of the user's memory: a tensor that is bound gets a map
/// and a buffer of its own. Allocates the rest from the backend. Throws Error when some shards of a
/// tensor are bound and others are not, or do not lie whole elements apart.
Executor::Buffers apply_bindings(Plan& plan, Backend& backend, const Bindings& bindings);

/// Takes these tensors out: all pieces of the rank's program, and the rank's shards. When all ranks
/// do so with the same tensors, the program stays one that makes progress.
void freeze_tensors(Plan& plan, int32_t rank, std::span<const int32_t> tensors);

}  // namespace refit
