#pragma once

#include <cstdint>

#include "exec/executor.h"
#include "plans/plan.h"

namespace refit {

// Weights that prove their own place. Every tensor is thought of as its row-major bytes, cut into
// words of 8; word w holds mix(seed + w), a bijection of 64-bit numbers (splitmix64), and the seed
// comes from the tensor's name and the round. So no two words of a tensor are equal, a value says
// where it belongs and from which round it is, and no copy of the weights is needed to find bytes
// that arrive at a wrong place, late or not at all.
//
// Tensors that are cast have finite values instead (verify_cast.h).
//
// All throw Error for a plan whose shards are not whole bytes.

/// Fills the rank's train buffers with the values of `round`.
void fill_train(const Plan& plan, int32_t rank, const Executor::Buffers& buffers, int64_t round);

/// Fills the rank's gen buffers with the complement of what `round` has to bring: no byte is right
/// before it arrives.
void poison_gen(const Plan& plan, int32_t rank, const Executor::Buffers& buffers, int64_t round);

/// Compares every byte of the rank's gen shards with the values of `round`. Returns how many bytes
/// that were; throws Error (kWork) that names rank, tensor, element, what was found and what was
/// expected.
int64_t verify_gen(const Plan& plan, int32_t rank, const Executor::Buffers& buffers, int64_t round);

}  // namespace refit
