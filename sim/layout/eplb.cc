#include "sim/layout/eplb.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <system_error>

#include "base/document.h"
#include "base/error.h"
#include "base/units.h"
#include "sim/layout/spec.h"

namespace refit {
namespace {

constexpr int32_t kMaxSlots = 1 << 20;

/// One list for all layers, or one per MoE layer.
using Table = std::vector<std::vector<int32_t>>;

bool is_file(const std::string& name) {
  std::error_code ignored;  // what cannot be looked up is no file
  return std::filesystem::is_regular_file(name, ignored);
}

std::vector<int32_t> read_list(const Value& value) {
  std::vector<int32_t> slots;
  for (size_t i = 0; i < value.size(); ++i) {
    slots.push_back(static_cast<int32_t>(value[i].as_int(0, kMaxSlots)));
  }
  return slots;
}

Table read_file_table(const std::string& path) {
  const Value root = load_document(path);
  const Value& lists = root.at("physical_to_logical");
  root.finish();
  Table table;
  if (lists.size() > 0 && lists[0].kind() == Value::Kind::kList) {
    for (size_t i = 0; i < lists.size(); ++i) table.push_back(read_list(lists[i]));
  } else {
    table.push_back(read_list(lists));
  }
  return table;
}

Table parse_table(const std::string& text, const std::string& place) {
  Table table;
  for (const std::string_view layer : split_text(text, '/')) {
    std::vector<int32_t>& slots = table.emplace_back();
    for (const std::string_view slot : split_text(layer, '|')) {
      slots.push_back(static_cast<int32_t>(parse_int(slot, 0, kMaxSlots, place)));
    }
  }
  return table;
}

/// Which layers of the model have experts; last, do multi-token-prediction layers?
std::vector<bool> moe_layers(const Model& model) {
  std::vector<bool> moe(static_cast<size_t>(model.layers) + 1, false);
  for (const Tensor& tensor : model.tensors) {
    const bool expert = tensor.role == Role::kExpertColumn || tensor.role == Role::kExpertRow;
    if (!expert) continue;
    moe[tensor.layer < 0 ? moe.size() - 1 : static_cast<size_t>(tensor.layer)] = true;
  }
  return moe;
}

}  // namespace

std::vector<std::vector<int32_t>> load_slots(const std::string& file_or_text, const Model& model,
                                             const std::string& place) {
  const Table table =
      is_file(file_or_text) ? read_file_table(file_or_text) : parse_table(file_or_text, place);
  for (size_t i = 0; i < table.size(); ++i) {
    const std::string list_place = fmt::format("{}, list {}", place, i);
    std::set<int32_t> experts;
    for (const int32_t expert : table[i]) {
      if (expert >= model.experts) {
        fail(list_place, fmt::format("expert {}", expert),
             fmt::format("0 to {}, as {} has {} experts", model.experts - 1, model.name,
                         model.experts));
      }
      experts.insert(expert);
    }
    for (int32_t expert = 0; expert < model.experts; ++expert) {
      if (!experts.contains(expert)) {
        fail(list_place, fmt::format("no slot of expert {}", expert), "at least one slot of each");
      }
    }
  }
  const std::vector<bool> moe = moe_layers(model);
  if (table.size() != 1 && moe.back()) {
    fail(place, fmt::format("{} lists", table.size()),
         "1, as multi-token-prediction layers have experts too");
  }
  const int64_t count = std::count(moe.begin(), moe.end() - 1, true);
  if (table.size() != 1 && std::ssize(table) != count) {
    fail(place, fmt::format("{} lists", table.size()),
         fmt::format("1, or {}: one per MoE layer", count));
  }
  std::vector<std::vector<int32_t>> of_layer(moe.size());
  size_t next = 0;
  for (size_t layer = 0; layer < moe.size(); ++layer) {
    if (moe[layer]) of_layer[layer] = table[table.size() == 1 ? 0 : next++];
  }
  return of_layer;
}

std::string resolve_eplb(const std::string& spec) {
  constexpr std::string_view kKey = "eplb=";
  for (const std::string_view separator : {",", ":"}) {
    const std::string wanted = std::string(separator) + std::string(kKey);
    const size_t at = spec.find(wanted);
    if (at == std::string::npos) continue;
    const size_t begin = at + wanted.size();
    const size_t end = std::min(spec.find(',', begin), spec.size());
    const std::string file = spec.substr(begin, end - begin);
    if (!is_file(file)) return spec;
    std::string inline_table;
    for (const std::vector<int32_t>& slots : read_file_table(file)) {
      inline_table += fmt::format("{}{}", inline_table.empty() ? "" : "/", fmt::join(slots, "|"));
    }
    return spec.substr(0, begin) + inline_table + spec.substr(end);
  }
  return spec;
}

}  // namespace refit
