#pragma once

#include <string>
#include <vector>

#include "plans/plan.h"
#include "sim/model/recipe.h"

namespace refit {

/// The inline layout that one side of a recipe comes to.
struct RecipeLayout {
  std::string spec;
  std::vector<std::string> notes;
};

/// NeMo RL's rules (nemo_rl/algorithms/grpo.py, models/policy, models/generation). Training:
/// Megatron (policy.megatron_cfg) or FSDP over TP (policy.dtensor_cfg) on the nodes of the cluster
/// that generation does not have. Generation: vLLM engines of tp x pp x (ep / tp) ranks, or
/// Megatron; on nodes of its own, or, colocated, on the ranks of training. What would change
/// tensors or their places in a way that we do not know (LoRA, FP8 weights, custom plans, ...) is
/// refused by the name of its field.
RecipeLayout translate_recipe(const Recipe& recipe, Side side);

}  // namespace refit
