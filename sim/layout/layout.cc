#include "sim/layout/layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <map>
#include <optional>
#include <system_error>

#include "base/document.h"
#include "base/error.h"
#include "base/file.h"
#include "sim/layout/eplb.h"
#include "sim/layout/frameworks.h"
#include "sim/layout/layout_file.h"
#include "sim/layout/nemo_rl.h"
#include "sim/layout/precision.h"
#include "sim/layout/quantise.h"
#include "sim/layout/spec.h"

namespace refit {
namespace {

using Loader = Layout (*)(const std::string& text, const Model& model, int32_t first_rank);
struct Kind {
  std::string_view name;
  Loader load;
};
constexpr Kind kKinds[] = {
    {"megatron", load_megatron}, {"vllm", load_vllm}, {"sglang", load_sglang}, {"fsdp", load_fsdp}};

const Kind* find_kind(std::string_view spec) {
  for (const Kind& kind : kKinds) {
    if (kind.name == spec_kind(spec)) return &kind;
  }
  return nullptr;
}

constexpr std::string_view kBlank =
    " \t\r\n\xEF\xBB\xBF";  // and the mark with which some editors begin UTF-8

bool is_json(std::string_view text) {
  const size_t first = text.find_first_not_of(kBlank);
  return first != std::string_view::npos && text[first] == '{';
}

/// A layout that needs no file: an inline grid, or a document (which has braces or lines).
bool is_text(std::string_view spec) {
  return find_kind(spec) != nullptr || is_json(spec) || spec.find('\n') != std::string_view::npos;
}

/// Parts of "KIND:...+KIND:...": several engines, each with a layout of its own.
std::vector<std::string> split_engines(const std::string& spec) {
  std::vector<std::string> parts;
  for (const std::string_view text : split_text(spec, '+')) {
    if (parts.empty() || find_kind(text) != nullptr) {
      parts.emplace_back(text);
    } else {
      parts.back() += "+" + std::string(text);
    }
  }
  return parts;
}

/// Adds the ranks of another engine to a layout.
void add_engine(const Layout& engine, const std::string& place, Layout& layout) {
  std::vector<int32_t> both;
  std::set_intersection(layout.ranks.begin(), layout.ranks.end(), engine.ranks.begin(),
                        engine.ranks.end(), std::back_inserter(both));
  if (!both.empty()) {
    fail(place, fmt::format("duplicate rank {}, which an engine before it has", both.front()),
         "engines with disjoint ranks");
  }
  if (layout.tensor_buffer != engine.tensor_buffer) {
    fail(place, "other buffers than an engine before it has", "fused=on or fused=off for all");
  }
  if (engine.quantisation != layout.quantisation || engine.precision != layout.precision) {
    fail(place, "other dtypes than the engine before it has", "one dtype of each tensor on a side");
  }
  const size_t middle = layout.ranks.size();
  layout.ranks.insert(layout.ranks.end(), engine.ranks.begin(), engine.ranks.end());
  std::inplace_merge(layout.ranks.begin(),
                     layout.ranks.begin() + static_cast<std::ptrdiff_t>(middle),
                     layout.ranks.end());
  layout.notes.insert(layout.notes.end(), engine.notes.begin(), engine.notes.end());

  std::map<std::pair<int32_t, int32_t>, int32_t> joined;  // a map of each
  std::vector<RankMap> maps;
  for (size_t t = 0; t < layout.tensor_map.size(); ++t) {
    const std::pair<int32_t, int32_t> pair{layout.tensor_map[t], engine.tensor_map[t]};
    const auto [it, is_new] = joined.try_emplace(pair, static_cast<int32_t>(maps.size()));
    if (is_new) {
      RankMap map = layout.maps[static_cast<size_t>(pair.first)];
      const RankMap& other = engine.maps[static_cast<size_t>(pair.second)];
      map.shards.insert(map.shards.end(), other.shards.begin(), other.shards.end());
      std::sort(map.shards.begin(), map.shards.end(),
                [](const auto& a, const auto& b) { return a.first < b.first; });
      maps.push_back(std::move(map));
    }
    layout.tensor_map[t] = it->second;
  }
  layout.maps = std::move(maps);
}

/// What a side of the recipe comes to, when `spec` is the path of one.
std::optional<RecipeLayout> find_recipe(const std::string& spec, Side side) {
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(spec, ignored)) return std::nullopt;
  const auto recipe = Recipe::load(spec);
  return recipe ? std::optional(translate_recipe(*recipe, side)) : std::nullopt;
}

/// The content of the file that `spec` names.
std::string read_named_file(const std::string& spec) {
  std::error_code ignored;  // what cannot be looked up is no file
  if (std::filesystem::is_regular_file(spec, ignored)) return read_file(spec);
  const std::string place = "layout " + quote(spec);
  const std::string_view kind = spec_kind(spec);
  const std::string found = kind.empty() ? "no such file" : "unknown kind " + quote(kind);
  fail(place, found,
       "megatron:KEY=VALUE,..., vllm:..., sglang:..., fsdp:... or the path of a layout file, a "
       "NeMo RL recipe, an NCCL M2N system JSON or a NeMo RL refit_info JSON");
}

Layout read_document(const Value& root, const Model& model, Side side, int32_t first_rank) {
  constexpr std::string_view kExpected =
      "train and generation (NCCL M2N system), per_layer_params (NeMo RL refit_info), or tensors "
      "or "
      "default (layout file)";
  if (root.kind() != Value::Kind::kMap) fail(root.place(), "no map", kExpected);
  if (root.find("train") != nullptr || root.find("generation") != nullptr) {
    return read_m2n_system(root, model, side, first_rank);
  }
  if (root.find("per_layer_params") != nullptr) return read_refit_info(root, model, side);
  if (root.find("tensors") != nullptr || root.find("default") != nullptr) {
    return read_layout_file(root, model, first_rank);
  }
  fail(root.place(), "no known key", kExpected);
}

}  // namespace

Layout load_layout(const std::string& spec, const Model& model, Side side, int32_t first_rank) {
  Layout layout;
  if (find_kind(spec) != nullptr) {
    for (const std::string& engine : split_engines(spec)) {
      const int32_t first = layout.ranks.empty() ? first_rank : layout.ranks.back() + 1;
      std::string grid = engine;
      const PrecisionSpec precision = take_precision(grid);
      Layout loaded = find_kind(engine)->load(grid, model, first);
      apply_precision(precision, model, "layout " + quote(engine), loaded);
      if (layout.ranks.empty()) {
        layout = std::move(loaded);
      } else {
        add_engine(loaded, "layout " + quote(engine), layout);
      }
    }
  } else if (const auto recipe = is_text(spec) ? std::nullopt : find_recipe(spec, side)) {
    layout = load_layout(recipe->spec, model, side, first_rank);
    layout.notes.insert(layout.notes.begin(), recipe->notes.begin(), recipe->notes.end());
  } else {
    const bool is_path = !is_text(spec);
    const std::string text = is_path ? read_named_file(spec) : spec;
    layout = read_document(parse_document(text, is_path ? spec : "layout", is_json(text)), model,
                           side, first_rank);
  }
  layout.spec = spec;
  if (find_kind(spec) != nullptr) follow_weights(model, layout);
  return layout;
}

std::string resolve_layout(const std::string& spec, Side side) {
  if (find_kind(spec) != nullptr) {
    std::string resolved;
    for (const std::string& engine : split_engines(spec)) {
      resolved += (resolved.empty() ? "" : "+") + resolve_eplb(engine);
    }
    return resolved;
  }
  if (is_text(spec)) return spec;
  if (const auto recipe = find_recipe(spec, side)) return recipe->spec;
  std::string text = read_named_file(spec);
  if (!is_text(text)) text += "\n";  // a single line, which would be taken for a path
  return text;
}

}  // namespace refit
