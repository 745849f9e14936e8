#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "sim/layout/grid.h"
#include "sim/layout/layout.h"
#include "sim/layout/stages.h"

namespace refit {

// One reader per kind of layout; load_layout chooses among them. `place` is for messages, ranks are
// in grid order.

/// Megatron-Core's sizes. A pipeline stage has W ranks: dense tensors live on tp x cp x dp = W of
/// them, experts on etp x ep x edp = W, both in the order that `order` says.
struct MegatronSizes {
  int32_t tp = 1, ep = 1, etp = 1, cp = 1;
  std::optional<int32_t> dp, edp, world;  // none: W = lcm(tp * cp, etp * ep)
  std::string order = "tp-cp-ep-dp-pp";   // fastest first; axes left out have size 1
  StageOptions stages;
  int32_t vocab = 128;  // make-vocab-size-divisible-by
  bool fused = false;   // buffers as Megatron has them
};

/// Ranks of the whole grid, pp * W. Sizes that contradict each other are refused with the numbers.
int32_t megatron_world(const MegatronSizes& sizes, const std::string& place);
Layout megatron_layout(const Model& model, const MegatronSizes& sizes,
                       const std::vector<int32_t>& ranks, const std::string& place);

Layout load_megatron(const std::string& text, const Model& model, int32_t first_rank);
Layout load_vllm(const std::string& text, const Model& model, int32_t first_rank);
Layout load_sglang(const std::string& text, const Model& model, int32_t first_rank);
Layout load_fsdp(const std::string& text, const Model& model, int32_t first_rank);

/// Sizes of a device mesh (replicas, shards, tp), tp fastest.
struct FsdpSizes {
  int32_t replicas = 1, shards = 1, tp = 1;
};

/// FSDP2: what tensor parallelism leaves of a tensor (torch chunks, whole heads) is cut along
/// dimension 0 in torch chunks over the shards (strided shards, in DTensor's words); replicas hold
/// the same (HSDP).
Layout fsdp_layout(const Model& model, const FsdpSizes& sizes, const std::vector<int32_t>& ranks,
                   const std::string& place);

}  // namespace refit
