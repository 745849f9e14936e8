#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "exec/cast.h"
#include "exec/executor.h"
#include "plans/plan.h"

namespace refit {

// Verification of tensors that are cast, beside that of the others in verify.h. Their weights are
// finite values, a function of (tensor's name, global index, round) with magnitudes far apart, so
// that the scales of neighbouring blocks differ. What a gen shard has to hold is computed from that
// function, never from bytes that were moved.

/// Is the tensor cast, or made of one that is? Throws Error for a cast that does not exist.
bool is_cast_tensor(const PlanTensor& tensor);

/// Fills a train shard of such a tensor. `memory` is where the buffer begins.
void fill_cast(const PlanTensor& tensor, const Shard& shard, std::byte* memory, int64_t round);

/// Global scales that are already known in a round, by name of the weight.
using RoundScales = std::map<std::string, GlobalScales>;

/// Writes NaN into a gen shard, which no cast of finite values gives; fp4_e2m1 has none: the
/// complement of what has to arrive.
void poison_cast(const Plan& plan, const PlanTensor& tensor, const Shard& shard, std::byte* memory,
                 int64_t round, RoundScales& known);

/// Compares a gen shard; returns its bytes. Throws Error (kWork) that names rank, tensor, element,
/// found and expected.
int64_t verify_cast(const Plan& plan, int32_t rank, const PlanTensor& tensor, const Shard& shard,
                    std::byte* memory, int64_t round, RoundScales& known);

}  // namespace refit
