#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "plans/box.h"
#include "plans/dtype.h"

namespace refit {

/// What a tensor is in its network: how a framework cuts it follows from this (sim/layout), never from its name.
enum class Role : uint8_t {
  kReplicated,   // norms, router, biases of rows, MLA's down-projections: every tensor-parallel rank holds all
  kVocab,        // embedding, lm_head: rows of the (padded) vocabulary
  kColumn,       // output features in dim 0: q, gate, up
  kKvColumn,     // like kColumn, but by KV heads: replicated when there are more ranks than heads
  kRow,          // input features in dim 1: o, down
  kExpertColumn, // [E, ffn, hidden]: gate, up of all experts of a layer
  kExpertRow,    // [E, hidden, ffn]: down
};

/// The block of the model in which a tensor lives: which pipeline stage holds it.
enum class Block : uint8_t { kEmbedding, kLayer, kHead };

struct Tensor {
  std::string name;  // experts of one projection and layer are one tensor: "model.layers.3.mlp.experts.gate_proj.weight"
  Dims shape;
  Dtype dtype = Dtype::kBf16;
  Role role = Role::kReplicated;
  Block block = Block::kLayer;
  int32_t layer = -1;  // of Block::kLayer
  bool ffn = false;    // FFN or expert weight: "bulk" in the words of PEERS.md 3.1
  bool operator==(const Tensor&) const = default;
};

struct Model {
  std::string name;
  std::string family;  // row of the table of architectures ("qwen3", "qwen3_moe", "deepseek_v3", ...)
  int32_t layers = 0;
  int32_t kv_heads = 0;
  int32_t experts = 0;  // 0: dense
  bool tied_embeddings = false;  // lm_head is the embedding
  std::vector<Tensor> tensors;
  bool operator==(const Model&) const = default;
};

int64_t tensor_bytes(const Tensor& tensor);
int64_t model_bytes(const Model& model);

struct ModelOptions {
  std::string dtype;              // wire dtype where the config leaves a choice; "" = the config's own, bf16 for quantised ones
  bool mtp = false;               // multi-token-prediction layers too
  bool unknown_replicate = false; // unknown tensor names are replicated instead of refused
};

/// A named model of models/, or a file: Hugging Face config.json, NCCL M2N model JSON ({name: {shape, dtype}}). The kind of a file is
/// found from its content.
Model load_model(const std::string& name_or_path, const ModelOptions& options = {});

/// The same from text; `place` names it in messages. `text` is what load_model read (kept in the plan's inputs).
Model parse_model(const std::string& text, const std::string& place, const ModelOptions& options = {});

}  // namespace refit
