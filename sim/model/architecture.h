#pragma once

#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sim/model/model.h"

namespace refit {

// The table of architecture families: all that Refit knows of networks. Two readers use it:
// config.cc makes tensors from a configuration's sizes, tensor_list.cc looks up the names of given
// tensors. Names and keys are those of Hugging Face.

/// One tensor of the network, or of each layer.
struct TensorRow {
  std::string_view
      name;  // of a layer's tensor: what follows "model.layers.N."; experts without their number
  // Dimensions as sums of products of configuration keys and numbers: "heads*dim, hidden_size". In
  // the dimension that tensor parallelism cuts, "|" stands between blocks that are cut each on its
  // own ("key_heads*dim|value_heads*dim"), and a first factor that ends in "_heads" counts what a
  // cut may not go through.
  std::string_view shape;
  Role role;
  std::string_view when = "";  // keys that have to be true or above 0 ("!key": false, 0 or absent);
                               // "moe", "dense", "linear", "full": kind of layer
  bool ffn = false;
  bool fp32 = false;  // whatever the dtype of the weights
};

using TensorRows = std::vector<TensorRow>;

/// Which layers have experts: layer l does when experts are configured, l >= `first`, (l + phase)
/// mod `every` == 0 and l is not in `dense`. The strings are keys; an empty or absent one means 0,
/// 1 and none. `phase` is 0 or 1.
struct MoeRule {
  std::string_view experts;
  std::string_view first;
  std::string_view every;
  int phase = 0;
  std::string_view dense;
};

struct Family {
  std::string_view name;
  std::vector<std::string_view> model_types;  // `model_type` of config.json
  std::vector<std::pair<std::string_view, std::string_view>>
      defaults;  // of absent keys: product or quotient of others
  MoeRule moe;
  TensorRows embedding;  // before the layers
  TensorRows layer;      // names follow "model.layers.N."
  TensorRows head;       // after the layers
  TensorRows mtp = {};   // more of a multi-token-prediction layer, which is like the last of the
                         // others, and its number follows theirs
  TensorRows mtp_apart = {};  // instead: outside such layers, which are "mtp.layers.N." then
};

/// How many multi-token-prediction layers there are: one of these keys.
inline constexpr std::string_view kMtpCounts[] = {"num_nextn_predict_layers",
                                                  "mtp_num_hidden_layers"};

std::span<const Family> families();

/// By family name or model_type; null when unknown.
const Family* find_family(std::string_view name);

/// "qwen3, qwen3_moe, ...", for messages: every name that find_family knows.
std::string list_families();

}  // namespace refit
