#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "plans/box.h"
#include "plans/dtype.h"

namespace refit {

/// What a tensor is in its network: how a framework cuts it follows from this (sim/layout), never
/// from its name.
enum class Role : uint8_t {
  kReplicated,    // all of it on every tensor-parallel rank: norms, router, MLA's down-projections
  kVocab,         // rows of the (padded) vocabulary: embedding, lm_head
  kColumn,        // output features in dim 0: q, gate, up and their biases
  kKvColumn,      // like kColumn, but by KV heads: replicated when there are more ranks than heads
  kRow,           // input features in dim 1: o, down
  kExpertColumn,  // [E, ffn, hidden]: gate, up of all experts of a layer
  kExpertRow,     // [E, hidden, ffn]: down
  kMtpColumn,  // projection into a multi-token-prediction layer: Megatron cuts its output features
  kMtpFcColumn,  // the same of Qwen, which vLLM cuts too
};

/// The block of the model in which a tensor lives: which pipeline stage holds it.
enum class Block : uint8_t { kEmbedding, kLayer, kHead };

/// A part of the dimension that tensor parallelism cuts, which is cut on its own.
struct CutBlock {
  int64_t extent = 0;
  int32_t heads = 0;  // equal parts that no cut goes through; 0: a cut may go anywhere
  bool operator==(const CutBlock&) const = default;
};

struct Tensor {
  // Experts of one projection and layer are one: "model.layers.3.mlp.experts.gate_proj.weight".
  std::string name;
  Dims shape;
  Dtype dtype = Dtype::kBf16;
  Role role = Role::kReplicated;
  Block block = Block::kLayer;
  int32_t layer = -1;  // of Block::kLayer; multi-token-prediction layers are Block::kHead
  bool ffn = false;    // FFN or expert weight, no shared expert: the bulk of a refit in NeMo RL
  // Of the dimension tp_dimension(role), one after the other; empty: one block, cut anywhere.
  // Several where a projection is fused (Mamba-style), one where heads have to stay whole.
  std::vector<CutBlock> blocks = {};
  bool operator==(const Tensor&) const = default;
};

struct Model {
  std::string name;
  std::string family;  // row of the table of architectures: "qwen3", "deepseek_v3", ...
  int32_t layers = 0;
  int32_t kv_heads = 0;  // of the kKvColumn tensors; 0: none, or a tensor list that does not tell
  int32_t experts = 0;   // 0: dense
  bool tied_embeddings = false;  // lm_head is the embedding
  std::vector<Tensor> tensors;
  bool operator==(const Model&) const = default;
};

/// The dimension that tensor parallelism cuts; -1 for none, or where that depends on the framework
/// (the kMtp roles). Of experts, those of one projection.
int32_t tp_dimension(Role role);

int64_t tensor_bytes(const Tensor& tensor);
int64_t model_bytes(const Model& model);

struct ModelOptions {
  // Of the weights; "": the config's own, bf16 for quantised ones. A tensor list leaves no choice.
  std::string dtype;
  bool mtp = false;  // multi-token-prediction layers too
  // Unknown names of a tensor list are replicated (outside the layers with Block::kHead), not
  // refused.
  bool unknown_replicate = false;
};

/// A named model of models/, a checkpoint's folder (its config.json), or a file: Hugging Face
/// config.json, model.safetensors.index.json (with the config.json, whose tensors its names have to
/// be, or the checkpoint's files beside it), .safetensors, NCCL M2N model JSON ({name: {shape,
/// dtype}}) or layer JSON (num_layers, default_tensors), NeMo RL refit_info JSON, or a NeMo
/// RL recipe, whose model_name means a named model.
Model load_model(const std::string& name_or_path, const ModelOptions& options = {});

/// The text from which parse_model gives the same model anywhere: what a plan keeps.
std::string resolve_model(const std::string& name_or_path);

/// A model from text: a file of models/ (YAML), a config.json or a tensor list; which one is found
/// from the content. `place` names it in messages, and its file name (without endings) the model.
Model parse_model(const std::string& text, const std::string& place,
                  const ModelOptions& options = {});

}  // namespace refit
