#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "base/error.h"
#include "sim/model/architecture.h"
#include "sim/model/readers.h"
#include "sim/model/shape.h"

namespace refit {
namespace {

constexpr int64_t kLargestSize = INT32_MAX;
constexpr int64_t kMostLayers = 10000;

/// The sizes of a configuration, by key, with the defaults of its family.
class Sizes {
 public:
  /// `outer` is the whole file, of which `config` may be the language model's part.
  Sizes(const Value& config, const Value& outer, const Family& family)
      : config_(config), outer_(outer), family_(family) {}

  /// The key's number, its default where it is absent, or an error.
  int64_t number(std::string_view key) const {
    const Value* value = find(key);
    if (value != nullptr) return value->as_int(1, kLargestSize);
    for (const auto& [name, expression] : family_.defaults) {
      if (name == key) return default_of(expression);
    }
    return config_.at(key).as_int(1, kLargestSize);
  }

  int64_t number_or(std::string_view key, int64_t fallback) const {
    const Value* value = find(key);
    return value == nullptr ? fallback : value->as_int(0, kLargestSize);
  }

  /// False when absent, null, false or 0.
  bool flag(std::string_view key) const {
    const Value* value = find(key);
    if (value == nullptr) return false;
    const bool is_bool = value->kind() == Value::Kind::kScalar &&
                         (value->as_text() == "true" || value->as_text() == "false");
    return is_bool ? value->as_bool() : value->as_int(0, kLargestSize) != 0;
  }

  Dims shape(std::string_view expression) const {
    std::vector<int64_t> dims;
    for (const std::string_view dimension : split_dimensions(expression)) {
      dims.push_back(*evaluate(dimension, value_of()));
    }
    return Dims(dims);
  }

  std::vector<CutBlock> blocks(const TensorRow& row) const { return *find_blocks(row, value_of()); }

  /// The key's value here or in the whole file; null where it is absent, null or "".
  const Value* find(std::string_view key) const {
    for (const Value* map : {&config_, &outer_}) {
      const Value* value = key.empty() ? nullptr : map->find(key);
      if (value != nullptr && !value->is_null()) return value;
    }
    return nullptr;
  }

  const Value& config() const { return config_; }

 private:
  KeyValue value_of() const {
    return [this](std::string_view key) { return std::optional(number(key)); };
  }

  int64_t default_of(std::string_view expression) const {
    const auto value = evaluate_product(expression, value_of());
    if (!value) {
      const size_t at = expression.find('/');
      fail(config_.place(),
           fmt::format("{} = {}/{}", expression, number(expression.substr(0, at)),
                       number(expression.substr(at + 1))),
           "a whole number");
    }
    return *value;
  }

  const Value& config_;
  const Value& outer_;
  const Family& family_;
};

struct LayerKind {
  bool moe = false, linear = false;  // with experts; with linear attention
};

/// Does a row's condition hold in such a layer?
bool holds(std::string_view when, const LayerKind& kind, const Sizes& sizes) {
  bool all = true;
  split(when, ' ', [&](std::string_view flag) {
    if (flag == "moe" || flag == "dense") {
      all = all && kind.moe == (flag == "moe");
    } else if (flag == "linear" || flag == "full") {
      all = all && kind.linear == (flag == "linear");
    } else {
      const bool wanted = !flag.starts_with('!');
      if (!wanted) flag.remove_prefix(1);
      all = sizes.flag(flag) == wanted && all;
    }
  });
  return all;
}

/// Which layers have linear attention: those that "layer_types" says, else all but every
/// full_attention_interval-th.
std::vector<bool> find_linear_layers(int64_t layers, const Sizes& sizes) {
  std::vector<bool> linear(static_cast<size_t>(layers), false);
  const Value* types = sizes.find("layer_types");
  if (types == nullptr) {
    const int64_t interval = sizes.number_or("full_attention_interval", 0);
    for (int64_t layer = 0; interval > 0 && layer < layers; ++layer) {
      linear[static_cast<size_t>(layer)] = (layer + 1) % interval != 0;
    }
    return linear;
  }
  if (std::ssize(linear) != static_cast<int64_t>(types->size())) {
    fail(types->place(), fmt::format("{} entries", types->size()),
         fmt::format("{}, one per layer", layers));
  }
  for (size_t layer = 0; layer < linear.size(); ++layer) {
    linear[layer] = (*types)[layer].as_text() == "linear_attention";
  }
  return linear;
}

std::vector<bool> find_moe_layers(const MoeRule& rule, int64_t layers, const Sizes& sizes) {
  const bool experts = sizes.flag(rule.experts);
  const int64_t first = sizes.number_or(rule.first, 0);
  const int64_t every = sizes.number_or(rule.every, 1);
  if (every < 1) fail(sizes.config().at(rule.every).place(), "0", "1 or more");
  std::vector<bool> moe(static_cast<size_t>(layers));
  for (int64_t layer = 0; layer < layers; ++layer) {
    moe[static_cast<size_t>(layer)] =
        experts && layer >= first && (layer + rule.phase) % every == 0;
  }
  if (const Value* dense = sizes.find(rule.dense)) {
    for (size_t i = 0; i < dense->size(); ++i) {
      moe[static_cast<size_t>((*dense)[i].as_int(0, layers - 1))] = false;
    }
  }
  return moe;
}

int64_t count_mtp_layers(const Family& family, const Sizes& sizes) {
  if (family.mtp.empty() && family.mtp_apart.empty()) return 0;
  for (const std::string_view key : kMtpCounts) {
    const int64_t count = sizes.number_or(key, 0);
    if (count > kMostLayers) {
      fail(sizes.config().at(key).place(), std::to_string(count),
           fmt::format("at most {}", kMostLayers));
    }
    if (count > 0) return count;
  }
  return 0;
}

/// Formats whose checkpoints have the tensors of the network, next to their scales.
constexpr std::string_view kQuantizations[] = {"fp8", "mxfp4", "modelopt", "compressed-tensors"};

/// Refuses formats that rearrange the network's tensors, by name.
void check_quantization(const Value& config) {
  const Value* method = config.find("quant_method");
  std::string name = method == nullptr ? "" : method->as_text();
  if (method == nullptr && config.find("group_size") != nullptr && config.find("bits") != nullptr) {
    name = "mlx";  // which names neither itself nor its kind
  }
  if (std::ranges::count(kQuantizations, name) > 0) return;
  fail(config.place(), "quantised as " + quote(name),
       fmt::format("one of {}, or --dtype bf16 for the network before quantisation",
                   fmt::join(kQuantizations, ", ")));
}

/// The dtype of the weights: the option's, else the config's own; a quantised checkpoint is trained
/// in bf16.
Dtype weight_dtype(const Sizes& sizes, const ModelOptions& options) {
  const Value* own = sizes.find("dtype");
  if (own == nullptr) own = sizes.find("torch_dtype");
  if (!options.dtype.empty()) return parse_dtype(options.dtype, "--dtype");
  if (const Value* quantized = sizes.find("quantization_config")) {
    check_quantization(*quantized);
    return Dtype::kBf16;
  }
  if (own == nullptr) return Dtype::kBf16;
  return parse_dtype(own->as_text(), own->place());
}

const Family& read_family(const Value& config, const Value& sizes, bool named) {
  const Value* type = named ? &config.at("family") : sizes.find("model_type");
  if (type == nullptr) type = &config.at("model_type");
  const Family* family = find_family(type->as_text());
  if (family == nullptr) {
    fail(type->place(), "the architecture family " + quote(type->as_text()),
         "one of: " + list_families());
  }
  return *family;
}

}  // namespace

Model read_config(const Value& config, bool named, const ModelOptions& options) {
  // Models of text and images keep the sizes of the language model, which is what is refitted, in a
  // map of their own.
  const Value* text_config = named ? nullptr : config.find("text_config");
  const Value& map = text_config == nullptr ? config : *text_config;
  const Family& family = read_family(config, map, named);
  const Sizes sizes(map, config, family);
  const Dtype dtype = weight_dtype(sizes, options);

  Model model;
  model.family = family.name;
  const int64_t layers = map.at("num_hidden_layers").as_int(1, kMostLayers);
  model.layers = static_cast<int32_t>(layers);
  model.tied_embeddings = sizes.flag("tie_word_embeddings");

  const auto add_rows = [&](const TensorRows& rows, const std::string& prefix, Block block,
                            int32_t layer, const LayerKind& kind) {
    for (const TensorRow& row : rows) {
      if (!holds(row.when, kind, sizes)) continue;
      Tensor tensor{.name = prefix + std::string(row.name),
                    .shape = sizes.shape(row.shape),
                    .dtype = row.fp32 ? Dtype::kFp32 : dtype,
                    .role = row.role,
                    .block = block,
                    .layer = layer,
                    .ffn = row.ffn && block == Block::kLayer,
                    .blocks = sizes.blocks(row)};
      check_tensor(tensor, config.place());
      if (tensor.role == Role::kKvColumn) {
        model.kv_heads = static_cast<int32_t>(sizes.number("num_key_value_heads"));
      }
      if (tensor.role == Role::kExpertColumn) model.experts = static_cast<int32_t>(tensor.shape[0]);
      model.tensors.push_back(std::move(tensor));
    }
  };

  add_rows(family.embedding, "", Block::kEmbedding, -1, {});
  const std::vector<bool> moe = find_moe_layers(family.moe, layers, sizes);
  const std::vector<bool> linear = find_linear_layers(layers, sizes);
  const auto kind_of = [&](size_t layer) { return LayerKind{moe[layer], linear[layer]}; };
  for (int32_t layer = 0; layer < model.layers; ++layer) {
    add_rows(family.layer, fmt::format("model.layers.{}.", layer), Block::kLayer, layer,
             kind_of(static_cast<size_t>(layer)));
  }
  add_rows(family.head, "", Block::kHead, -1, {});

  // A multi-token-prediction layer is like the last of the others.
  const int64_t mtp_layers = count_mtp_layers(family, sizes);
  if (options.mtp && mtp_layers > 0) add_rows(family.mtp_apart, "", Block::kHead, -1, {});
  for (int64_t i = 0; options.mtp && i < mtp_layers; ++i) {
    const std::string prefix = family.mtp_apart.empty()
                                   ? fmt::format("model.layers.{}.", layers + i)
                                   : fmt::format("mtp.layers.{}.", i);
    add_rows(family.mtp, prefix, Block::kHead, -1, kind_of(moe.size() - 1));
    add_rows(family.layer, prefix, Block::kHead, -1, kind_of(moe.size() - 1));
  }

  if (named) {
    config.at("source").as_text();
    config.finish();
  }
  return model;
}

}  // namespace refit
