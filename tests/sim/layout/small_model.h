#pragma once

#include <fmt/format.h>

#include <string>

#include "sim/layout/layout.h"
#include "sim/model/model.h"

namespace refit {

/// Dimensions of a hand-built decoder: hidden 8, head size 2, KV heads and experts as given; the
/// FFN is 12 wide.
struct SmallModel {
  int32_t layers = 2;
  int32_t kv_heads = 2;
  int32_t experts = 0;
  int64_t vocab = 10;
  bool tied = false;
};

inline Model make_small_model(const SmallModel& sizes) {
  Model model;
  model.name = "small";
  model.layers = sizes.layers;
  model.kv_heads = sizes.kv_heads;
  model.experts = sizes.experts;
  model.tied_embeddings = sizes.tied;
  const auto add = [&](std::string name, Dims shape, Role role, Block block, int32_t layer) {
    model.tensors.push_back({std::move(name), shape, Dtype::kBf16, role, block, layer, false});
  };
  add("embed", {sizes.vocab, 8}, Role::kVocab, Block::kEmbedding, -1);
  for (int32_t layer = 0; layer < sizes.layers; ++layer) {
    const std::string prefix = fmt::format("{}.", layer);
    add(prefix + "norm", {8}, Role::kReplicated, Block::kLayer, layer);
    add(prefix + "q", {16, 8}, Role::kColumn, Block::kLayer, layer);
    add(prefix + "k", {sizes.kv_heads * 2, 8}, Role::kKvColumn, Block::kLayer, layer);
    add(prefix + "o", {8, 16}, Role::kRow, Block::kLayer, layer);
    add(prefix + "o_bias", {8}, Role::kRow, Block::kLayer, layer);
    if (sizes.experts > 0) {
      add(prefix + "gate", {sizes.experts, 12, 8}, Role::kExpertColumn, Block::kLayer, layer);
      add(prefix + "down", {sizes.experts, 8, 12}, Role::kExpertRow, Block::kLayer, layer);
    }
  }
  add("final_norm", {8}, Role::kReplicated, Block::kHead, -1);
  if (!sizes.tied) add("head", {sizes.vocab, 8}, Role::kVocab, Block::kHead, -1);
  return model;
}

/// What a rank holds of a tensor: "[0:4, 0:8]", or "-" for nothing.
inline std::string held(const Model& model, const Layout& layout, const std::string& tensor,
                        int32_t rank) {
  for (size_t t = 0; t < model.tensors.size(); ++t) {
    if (model.tensors[t].name != tensor) continue;
    const RankMap& map = layout.maps[static_cast<size_t>(layout.tensor_map[t])];
    std::string text;
    if (const auto* shards = map.find(rank)) {
      for (const Shard& shard : *shards) text += (text.empty() ? "" : " ") + print_box(shard.box);
    }
    return text.empty() ? "-" : text;
  }
  return "no such tensor";
}

}  // namespace refit
