#pragma once

#include <string>

#include "base/document.h"
#include "sim/model/model.h"

namespace refit {

// The readers behind parse_model; each takes one kind of document. Model::name is left to the
// caller.

/// A Hugging Face config.json, or, when `named`, a file of models/: the same keys, with `family`
/// and `source`, and no others.
Model read_config(const Value& config, bool named, const ModelOptions& options);

/// {name: {"shape": [...], "dtype": "...", ...}}: an NCCL M2N model or a safetensors header.
/// Numbered experts are grouped.
Model read_tensor_list(const Value& list, const ModelOptions& options);

/// An NCCL M2N layer configuration: `num_layers` times the `default_tensors`, each with the
/// dimensions that tensor and expert parallelism cut. It states no dtype: `--dtype`, else bf16.
Model read_m2n_layers(const Value& root, const ModelOptions& options);

/// The tensor list (as JSON text) of a NeMo RL refit_info: names, shapes and dtypes of
/// per_layer_params and misc_meta.
std::string list_refit_info(const Value& root);

/// The tensor list (as JSON text) of a .safetensors file, or of the files that a
/// model.safetensors.index.json names, which lie next to it. Only headers are read; offsets that do
/// not fit shapes and dtypes, overlap or leave gaps are refused with the tensor's name.
std::string list_safetensors(const std::string& path);
std::string list_indexed_safetensors(const std::string& index_path);

/// Refuses a model.safetensors.index.json (as JSON) whose names are not those of the model, made
/// with its multi-token-prediction layers. Block scales ("_scale_inv") go with their weights,
/// vision towers are passed over.
void check_index(const Value& index, const Model& with_mtp);

/// Largest tensor, in elements: keeps every byte count of a model within int64.
inline constexpr int64_t kMaxElements = int64_t{1} << 40;

/// Refuses what later arithmetic could not hold: more than kMaxElements, an odd last dimension of
/// 4-bit elements.
void check_tensor(const Tensor& tensor, const std::string& place);

}  // namespace refit
