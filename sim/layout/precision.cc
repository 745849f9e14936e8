#include "sim/layout/precision.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>

#include "base/error.h"
#include "sim/layout/glob.h"
#include "sim/layout/spec.h"

namespace refit {
namespace {

// What no engine quantises by default: ModelOpt's list of disabled quantisers (routers, gates of
// shared experts, convolutions), biases, and what engines build as plain layers.
constexpr std::array<std::string_view, 11> kKept = {"*embed_tokens*",
                                                    "*lm_head*",
                                                    "*norm*",
                                                    "*.gate.weight",
                                                    "*router*",
                                                    "*bias*",
                                                    "*conv1d*",
                                                    "*.shared_expert_gate.weight",
                                                    "*indexer.weights_proj*",
                                                    "*eh_proj*",
                                                    "mtp.fc.*"};

/// The dtype of most bytes.
Dtype main_dtype(const Model& model) {
  std::map<Dtype, int64_t> bytes;
  for (const Tensor& tensor : model.tensors) bytes[tensor.dtype] += tensor_bytes(tensor);
  Dtype most = Dtype::kBf16;
  for (const auto& [dtype, sum] : bytes) {
    if (sum > bytes[most]) most = dtype;
  }
  return most;
}

}  // namespace

bool parse_scales(std::string_view text, const std::string& place) {
  if (text != "follow" && text != "whole") fail(place, quote(text), "follow or whole");
  return text == "whole";
}

CastAt parse_cast(std::string_view text, const std::string& place) {
  if (text == "anywhere") return CastAt::kAnywhere;
  if (text == "on_send") return CastAt::kOnSend;
  if (text == "on_receive") return CastAt::kOnReceive;
  fail(place, quote(text), "anywhere, on_send or on_receive");
}

PrecisionSpec take_precision(std::string& spec) {
  const std::string place = "layout " + quote(spec);
  const size_t body = spec_kind(spec).size() + 1;
  PrecisionSpec precision;
  std::vector<std::string_view> rest, seen;
  for (const std::string_view entry : split_text(std::string_view(spec).substr(body), ',')) {
    const size_t equals = std::min(entry.find('='), entry.size());
    const std::string_view key = entry.substr(0, equals);
    const std::string_view value = entry.substr(std::min(equals + 1, entry.size()));
    const std::string key_place = fmt::format("{}, key {}", place, key);
    if (key == "dtype") {
      precision.dtype = parse_dtype(value, key_place);
    } else if (key == "quant") {
      precision.quantisation.format = parse_format(value, key_place);
    } else if (key == "skip") {
      for (const std::string_view pattern : split_text(value, '|')) {
        check_glob(pattern, key_place);
        precision.quantisation.skip.emplace_back(pattern);
      }
    } else if (key == "scales") {
      precision.quantisation.whole_scales = parse_scales(value, key_place);
    } else {
      rest.push_back(entry);
      continue;
    }
    if (std::find(seen.begin(), seen.end(), key) != seen.end()) {
      fail(key_place, "a second value " + quote(value), "the key only once");
    }
    seen.push_back(key);
  }
  if (!precision.quantisation.skip.empty() && precision.quantisation.format == Format::kNone) {
    fail(place + ", key skip", "patterns without quant", "quant=FORMAT");
  }
  if (!seen.empty()) {
    // Every grid has sizes of which 1 is the default, and none is without a key.
    if (rest.empty()) rest.push_back("tp=1");
    spec = fmt::format("{}{}", spec.substr(0, body), fmt::join(rest, ","));
  }
  return precision;
}

void check_skip(const Quantisation& quantisation, const Model& model, const std::string& place) {
  for (const std::string& pattern : quantisation.skip) {
    if (std::none_of(model.tensors.begin(), model.tensors.end(),
                     [&](const Tensor& tensor) { return match_glob(pattern, tensor.name); })) {
      fail(place + ", key skip", quote(pattern), "a pattern that some tensor matches");
    }
  }
}

void apply_precision(const PrecisionSpec& precision, const Model& model, const std::string& place,
                     Layout& layout) {
  layout.quantisation = precision.quantisation;
  check_skip(precision.quantisation, model, place);
  if (!precision.dtype) return;
  const Dtype main = main_dtype(model);
  for (const Tensor& tensor : model.tensors) {
    const bool changes = tensor.dtype == main;
    layout.precision.push_back({changes ? *precision.dtype : tensor.dtype,
                                changes ? CastAt::kAnywhere : CastAt::kNowhere});
  }
}

bool is_selected(const Tensor& tensor, const Quantisation& quantisation) {
  if (quantisation.format == Format::kNone || tensor.shape.count < 2 ||
      tensor.role == Role::kVocab || !is_quantisable(tensor.dtype)) {
    return false;
  }
  const auto matches = [&](std::string_view pattern) { return match_glob(pattern, tensor.name); };
  return std::none_of(kKept.begin(), kKept.end(), matches) &&
         std::none_of(quantisation.skip.begin(), quantisation.skip.end(), matches);
}

}  // namespace refit
