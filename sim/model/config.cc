#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <optional>

#include "base/error.h"
#include "sim/model/architecture.h"
#include "sim/model/readers.h"

namespace refit {
namespace {

constexpr int64_t kLargestSize = INT32_MAX;
constexpr int64_t kMostLayers = 10000;

/// Calls `use` with each part of `text` between separators.
template <typename Use>
void split(std::string_view text, char separator, Use use) {
  while (!text.empty()) {
    const size_t end = std::min(text.find(separator), text.size());
    use(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
}

/// The sizes of a configuration, by key, with the defaults of its family.
class Sizes {
 public:
  Sizes(const Value& config, const Family& family) : config_(config), family_(family) {}

  /// The key's number, its default where it is absent, or an error.
  int64_t number(std::string_view key) const {
    const Value* value = config_.find(key);
    if (value == nullptr || value->is_null()) {
      for (const auto& [name, expression] : family_.defaults) {
        if (name == key) return product(expression);
      }
    }
    return config_.at(key).as_int(1, kLargestSize);
  }

  int64_t number_or(std::string_view key, int64_t fallback) const {
    const Value* value = key.empty() ? nullptr : config_.find(key);
    return value == nullptr || value->is_null() ? fallback : value->as_int(0, kLargestSize);
  }

  /// False when absent, null, false or 0.
  bool flag(std::string_view key) const {
    const Value* value = key.empty() ? nullptr : config_.find(key);
    if (value == nullptr || value->is_null()) return false;
    const bool is_bool = value->kind() == Value::Kind::kScalar &&
                         (value->as_text() == "true" || value->as_text() == "false");
    return is_bool ? value->as_bool() : value->as_int(0, kLargestSize) != 0;
  }

  Dims shape(std::string_view expression) const {
    std::vector<int64_t> dims;
    split(expression, ',', [&](std::string_view dim) {
      if (dim.starts_with(' ')) dim.remove_prefix(1);
      int64_t sum = 0;
      split(dim, '+', [&](std::string_view term) { sum += product(term); });
      dims.push_back(sum);
    });
    return Dims(dims);
  }

  const Value& config() const { return config_; }

 private:
  /// Of one factor, "a*b" or "a/b".
  int64_t product(std::string_view expression) const {
    const size_t at = expression.find_first_of("*/");
    const int64_t left = factor(expression.substr(0, at));
    if (at == std::string_view::npos) return left;
    const int64_t right = factor(expression.substr(at + 1));
    if (expression[at] == '*') return left * right;  // below 2^62, so that a sum of two is an int64
    if (left % right != 0) {
      fail(config_.place(), fmt::format("{} = {}/{}", expression, left, right), "a whole number");
    }
    return left / right;
  }

  int64_t factor(std::string_view text) const {
    int64_t value = 0;
    const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
    return code == std::errc() ? value : number(text);
  }

  const Value& config_;
  const Family& family_;
};

/// Does a row's condition hold in a layer with or without experts?
bool holds(std::string_view when, bool moe, const Sizes& sizes) {
  bool all = true;
  split(when, ' ', [&](std::string_view flag) {
    if (flag == "moe") {
      all = all && moe;
    } else if (flag == "dense") {
      all = all && !moe;
    } else {
      const bool wanted = !flag.starts_with('!');
      if (!wanted) flag.remove_prefix(1);
      all = sizes.flag(flag) == wanted && all;
    }
  });
  return all;
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
  const Value* dense = rule.dense.empty() ? nullptr : sizes.config().find(rule.dense);
  if (dense != nullptr && !dense->is_null()) {
    for (size_t i = 0; i < dense->size(); ++i) {
      moe[static_cast<size_t>((*dense)[i].as_int(0, layers - 1))] = false;
    }
  }
  return moe;
}

/// The dtype of the weights: the option's, else the config's own; a quantised checkpoint is trained
/// in bf16.
Dtype weight_dtype(const Value& config, const Value& sizes, const ModelOptions& options) {
  const auto find = [&](std::string_view key) -> const Value* {
    for (const Value* map : {&sizes, &config}) {
      const Value* value = map->find(key);
      if (value != nullptr && !value->is_null()) return value;
    }
    return nullptr;
  };
  const Value* own = find("dtype");
  if (own == nullptr) own = find("torch_dtype");
  if (!options.dtype.empty()) return parse_dtype(options.dtype, "--dtype");
  if (own == nullptr || find("quantization_config") != nullptr) return Dtype::kBf16;
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
  const Sizes sizes(map, family);
  const Dtype dtype = weight_dtype(config, map, options);

  Model model;
  model.family = family.name;
  const int64_t layers = map.at("num_hidden_layers").as_int(1, kMostLayers);
  model.layers = static_cast<int32_t>(layers);
  model.tied_embeddings = sizes.flag("tie_word_embeddings");

  const auto add_rows = [&](const TensorRows& rows, const std::string& prefix, Block block,
                            int32_t layer, bool moe) {
    for (const TensorRow& row : rows) {
      if (!holds(row.when, moe, sizes)) continue;
      Tensor tensor{.name = prefix + std::string(row.name),
                    .shape = sizes.shape(row.shape),
                    .dtype = row.fp32 ? Dtype::kFp32 : dtype,
                    .role = row.role,
                    .block = block,
                    .layer = layer,
                    .ffn = row.ffn && block == Block::kLayer};
      check_tensor(tensor, config.place());
      if (tensor.role == Role::kKvColumn) {
        model.kv_heads = static_cast<int32_t>(sizes.number("num_key_value_heads"));
      }
      if (tensor.role == Role::kExpertColumn) model.experts = static_cast<int32_t>(tensor.shape[0]);
      model.tensors.push_back(std::move(tensor));
    }
  };

  add_rows(family.embedding, "", Block::kEmbedding, -1, false);
  const std::vector<bool> moe = find_moe_layers(family.moe, layers, sizes);
  for (int32_t layer = 0; layer < model.layers; ++layer) {
    add_rows(family.layer, fmt::format("model.layers.{}.", layer), Block::kLayer, layer,
             moe[static_cast<size_t>(layer)]);
  }
  add_rows(family.head, "", Block::kHead, -1, false);

  // A multi-token-prediction layer is like the last of the others.
  if (!family.mtp.empty()) {
    const int64_t mtp_layers = sizes.number_or("num_nextn_predict_layers", 0);
    if (mtp_layers > kMostLayers) {
      fail(map.at("num_nextn_predict_layers").place(), std::to_string(mtp_layers),
           fmt::format("at most {}", kMostLayers));
    }
    for (int64_t i = 0; options.mtp && i < mtp_layers; ++i) {
      const std::string prefix = fmt::format("model.layers.{}.", layers + i);
      add_rows(family.mtp, prefix, Block::kHead, -1, moe.back());
      add_rows(family.layer, prefix, Block::kHead, -1, moe.back());
    }
  }

  if (named) {
    config.at("source").as_text();
    config.finish();
  }
  return model;
}

}  // namespace refit
