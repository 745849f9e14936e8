#include "sim/layout/grid.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "sim/layout/fused.h"
#include "sim/layout/quantise.h"

namespace refit {
namespace {

bool is_expert(const Tensor& tensor) {
  return tensor.role == Role::kExpertColumn || tensor.role == Role::kExpertRow;
}

/// Does the framework cut the projection into a multi-token-prediction layer? Megatron-Core's
/// eh_proj is a ColumnParallelLinear, and so is fc of vLLM's Qwen; all others are plain linear
/// layers.
bool cuts_mtp_projection(Framework framework, Role role) {
  if (role != Role::kMtpColumn && role != Role::kMtpFcColumn) return false;
  return framework == Framework::kMegatron ||
         (framework == Framework::kVllm && role == Role::kMtpFcColumn);
}

/// The dimension of the tensor that the axis cuts, -1 for none.
int32_t cut_dimension(const Tensor& tensor, std::string_view axis, Framework framework) {
  if (axis == "ep") return 0;
  const bool kv = tensor.role == Role::kKvColumn && axis == "kv";
  if (axis != (is_expert(tensor) ? "etp" : "tp") && !kv) return -1;
  if (cuts_mtp_projection(framework, tensor.role)) return 0;
  // The bias of a row-parallel projection is added after the reduction: every rank has all of it.
  const int32_t dim = tp_dimension(tensor.role);
  return dim < tensor.shape.count ? dim : -1;
}

/// How an axis of so many ranks cuts the tensor.
Placement place_axis(const Tensor& tensor, std::string_view axis, int32_t size, const Grid& grid,
                     const std::string& place) {
  Placement placement{cut_dimension(tensor, axis, grid.framework)};
  if (placement.dim < 0 || axis == "ep" || size == 1) return placement;
  for (const CutBlock& block : tensor.blocks) {
    if (tensor.blocks.size() > 1) placement.blocks.push_back(block.extent);
    if (block.heads > 0 && block.heads % size != 0) {
      fail(place, fmt::format("{} heads over {}={}", block.heads, axis, size),
           "a divisor of them: no framework cuts through a head");
    }
  }
  if (tensor.role == Role::kVocab) {
    const int64_t rows = tensor.shape[0], multiple = grid.vocab_multiple;
    placement.padded = (rows + multiple - 1) / multiple * multiple;
    if (placement.padded % size != 0) {
      fail(place, fmt::format("{} rows, {} with padding, over tp={}", rows, placement.padded, size),
           "a divisor of them");
    }
  }
  return placement;
}

/// With more ranks than KV heads, tp / kv_heads neighbours share a head: axis "tp" becomes "kv" x
/// "kv_copy".
Mesh share_kv_heads(const Mesh& mesh, int32_t kv_heads, const std::string& place) {
  const auto tp = std::find(mesh.axis.begin(), mesh.axis.end(), "tp") - mesh.axis.begin();
  REFIT_CHECK(tp < std::ssize(mesh.axis));
  const int32_t size = mesh.size[static_cast<size_t>(tp)];
  if (size == 1) return mesh;
  if (kv_heads < 1)
    fail(place, "an unknown number of KV heads", "a model that tells it, to cut by tp");
  if (kv_heads % size == 0) return mesh;
  if (size % kv_heads != 0) {
    fail(place, fmt::format("{} KV heads over tp={}", kv_heads, size), "one to divide the other");
  }
  Mesh shared = mesh;
  shared.axis[static_cast<size_t>(tp)] = "kv";
  shared.size[static_cast<size_t>(tp)] = kv_heads;
  shared.axis.insert(shared.axis.begin() + tp + 1, "kv_copy");
  shared.size.insert(shared.size.begin() + tp + 1, size / kv_heads);
  return shared;
}

/// The same mesh on two stages: one more axis, over which tensors are replicated.
Mesh join(const Mesh& first, const Mesh& last) {
  Mesh both = first;
  both.axis.insert(both.axis.begin(), "end");
  both.size.insert(both.size.begin(), 2);
  both.ranks.insert(both.ranks.end(), last.ranks.begin(), last.ranks.end());
  return both;
}

}  // namespace

Mesh tensor_mesh(const Model& model, const Tensor& tensor, const Grid& grid,
                 const std::string& place) {
  const auto mesh_of = [&](const Stage& stage) {
    if (is_expert(tensor)) return stage.experts;
    return tensor.role == Role::kKvColumn ? share_kv_heads(stage.dense, model.kv_heads, place)
                                          : stage.dense;
  };
  const Stage& last = grid.stages.back();
  switch (tensor.block) {
    case Block::kEmbedding: {
      const Mesh mesh = mesh_of(grid.stages.front());
      const bool at_both_ends =
          model.tied_embeddings && tensor.role == Role::kVocab && grid.stages.size() > 1;
      return at_both_ends ? join(mesh, mesh_of(last)) : mesh;
    }
    case Block::kHead:
      return mesh_of(last);
    case Block::kLayer: {
      const auto layer = static_cast<size_t>(tensor.layer);
      REFIT_CHECK(layer < grid.stage_of_layer.size());
      return mesh_of(grid.stages[static_cast<size_t>(grid.stage_of_layer[layer])]);
    }
  }
  REFIT_CHECK(false);
  return {};
}

namespace {

/// From who has which slots to who has which experts.
RankMap fill_slots(const RankMap& slots, std::span<const int32_t> expert_of_slot) {
  RankMap map;
  for (const auto& [rank, shards] : slots.shards) {
    std::vector<Shard> experts;
    for (const Shard& shard : shards) {
      for (int64_t slot = shard.box.lo[0]; slot < shard.box.hi[0]; ++slot) {
        Shard one = shard;
        one.box.lo[0] = expert_of_slot[static_cast<size_t>(slot)];
        one.box.hi[0] = one.box.lo[0] + 1;
        one.offset += (slot - shard.box.lo[0]) * shard.stride[0];
        experts.push_back(one);
      }
    }
    map.shards.emplace_back(rank, std::move(experts));
  }
  return map;
}

}  // namespace

Mesh slice_mesh(const RankOrder& order, std::string_view fixed, int32_t index,
                std::span<const int32_t> ranks) {
  Mesh mesh;
  int32_t stride = 1;
  std::vector<int32_t> numbers{0};
  for (size_t axis = 0; axis < order.axis.size(); ++axis) {
    const int32_t size = order.size[axis];
    if (order.axis[axis] == fixed) {
      for (int32_t& number : numbers) number += index * stride;
    } else {
      mesh.axis.insert(mesh.axis.begin(), order.axis[axis]);
      mesh.size.insert(mesh.size.begin(), size);
      const size_t count = numbers.size();
      for (int32_t i = 1; i < size; ++i) {
        for (size_t k = 0; k < count; ++k) numbers.push_back(numbers[k] + i * stride);
      }
    }
    stride *= size;
  }
  REFIT_CHECK(stride == std::ssize(ranks));
  mesh.ranks.reserve(numbers.size());
  for (const int32_t number : numbers) mesh.ranks.push_back(ranks[static_cast<size_t>(number)]);
  return mesh;
}

int32_t MapTable::map_of(const Dims& shape, const Mesh& mesh, std::span<const Placement> placements,
                         Split split, const std::string& place,
                         std::span<const int32_t> expert_of_slot) {
  std::vector<int64_t> dims;
  for (const Placement& placement : placements) {
    dims.insert(dims.end(),
                {placement.dim, placement.pieces, placement.padded, std::ssize(placement.blocks)});
    dims.insert(dims.end(), placement.blocks.begin(), placement.blocks.end());
  }
  const auto [it, is_new] =
      ids_.try_emplace(Key{shape, std::move(dims), split, mesh.size, mesh.ranks,
                           std::vector<int32_t>(expert_of_slot.begin(), expert_of_slot.end())},
                       static_cast<int32_t>(maps_.size()));
  if (!is_new) return it->second;
  if (expert_of_slot.empty()) {
    maps_.push_back(make_map(shape, mesh, placements, split, place));
  } else {
    Dims slots = shape;
    slots[0] = std::ssize(expert_of_slot);
    maps_.push_back(
        fill_slots(make_map(slots, mesh, placements, Split::kEven, place), expert_of_slot));
  }
  return it->second;
}

Layout place_tensors(const Model& model, const Grid& grid, std::span<const int32_t> ranks,
                     const std::string& place) {
  Layout layout;
  layout.ranks.assign(ranks.begin(), ranks.end());
  std::sort(layout.ranks.begin(), layout.ranks.end());
  layout.notes = grid.notes;
  MapTable table;
  const std::vector<int32_t> weight_of = weights_of_scales(model);
  for (size_t t = 0; t < model.tensors.size(); ++t) {
    Tensor tensor = model.tensors[t];
    if (weight_of[t] >= 0) tensor.role = Role::kReplicated;  // until it follows its weight
    const std::string tensor_place = fmt::format("{}, tensor {}", place, tensor.name);
    const Mesh mesh = tensor_mesh(model, tensor, grid, tensor_place);
    std::vector<Placement> placements;
    for (size_t axis = 0; axis < mesh.axis.size(); ++axis) {
      placements.push_back(
          place_axis(tensor, mesh.axis[axis], mesh.size[axis], grid, tensor_place));
    }
    const Split split = is_expert(tensor) ? grid.expert_split : Split::kEven;
    std::span<const int32_t> slots;
    if (is_expert(tensor) && !grid.expert_of_slot.empty()) {
      slots = tensor.layer < 0 ? grid.expert_of_slot.back()
                               : grid.expert_of_slot[static_cast<size_t>(tensor.layer)];
    }
    layout.tensor_map.push_back(
        table.map_of(tensor.shape, mesh, placements, split, tensor_place, slots));
  }
  layout.maps = table.take();
  apply_fusions(model, grid, place, layout);
  return layout;
}

}  // namespace refit
