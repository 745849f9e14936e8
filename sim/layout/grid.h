#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "sim/layout/layout.h"
#include "sim/model/model.h"

namespace refit {

/// One pipeline stage: the same ranks as two meshes. Of `dense` the axis "tp" cuts, of `experts`
/// the axes "ep" (which experts) and "etp" (each expert); tensors are replicated over all other
/// axes.
struct Stage {
  Mesh dense, experts;
};

/// Whose storage a layout has: which tensors lie fused in one buffer, and how.
enum class Framework : uint8_t { kMegatron, kVllm, kSglang };

/// What a framework's parallelism sizes come to.
struct Grid {
  Framework framework = Framework::kMegatron;
  bool fused = false;          // buffers are the framework's own (fused.h)
  int64_t vocab_multiple = 1;  // the vocabulary is cut as if it were padded to a multiple of this
  std::vector<Stage> stages;
  std::vector<int32_t> stage_of_layer;
  Split expert_split = Split::kEven;  // of the experts over "ep"
  // Per layer, and last for multi-token-prediction layers, the expert in every slot, dealt evenly
  // over "ep" instead of the experts themselves: some experts have several slots. Empty: no such
  // table.
  std::vector<std::vector<int32_t>> expert_of_slot;
  std::vector<std::string> notes;
};

/// Axes over the ranks 0 .. product - 1, the first axis fastest: Megatron's RankGenerator.
struct RankOrder {
  std::vector<std::string> axis;
  std::vector<int32_t> size;
};

/// The ranks whose index on the axis `fixed` is `index`, as a mesh of the other axes (slowest
/// first), numbered through `ranks`.
Mesh slice_mesh(const RankOrder& order, std::string_view fixed, int32_t index,
                std::span<const int32_t> ranks);

/// Collects a layout's maps: equal shape, mesh and placement give one map, numbered in order of
/// first use. With `expert_of_slot` dimension 0 is that of the slots, and every slot becomes a
/// shard of its own, so that a rank may hold an expert twice.
class MapTable {
 public:
  int32_t map_of(const Dims& shape, const Mesh& mesh, std::span<const Placement> placements,
                 Split split, const std::string& place,
                 std::span<const int32_t> expert_of_slot = {});
  std::vector<RankMap> take() { return std::move(maps_); }

 private:
  using Key = std::tuple<Dims, std::vector<int64_t>, Split, std::vector<int32_t>,
                         std::vector<int32_t>, std::vector<int32_t>>;
  std::map<Key, int32_t> ids_;
  std::vector<RankMap> maps_;
};

/// The mesh on which the grid has a tensor; KV heads that are fewer than tp are shared on it (axes
/// "kv" and "kv_copy" in place of "tp").
Mesh tensor_mesh(const Model& model, const Tensor& tensor, const Grid& grid,
                 const std::string& place);

/// Places every tensor of the model by its role and block (sim/model/model.h) on the grid. The
/// embedding is on the first stage, the head on the last; a tied embedding is on both, as
/// frameworks keep a copy at either end. Rows of padding move the cut of the vocabulary but belong
/// to nobody. A tensor-parallel size that would cut through a head is refused; KV heads that are
/// fewer are shared, but for Megatron, which cuts its fused query-key-value matrix wherever that
/// comes to.
Layout place_tensors(const Model& model, const Grid& grid, std::span<const int32_t> ranks,
                     const std::string& place);

}  // namespace refit
