#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <optional>
#include <set>

#include "base/error.h"
#include "sim/model/architecture.h"
#include "sim/model/readers.h"

namespace refit {
namespace {

constexpr std::string_view kLayerPrefix = "model.layers.";
constexpr std::string_view kExperts = ".experts.";
constexpr std::string_view kScale = "_scale_inv";

/// A tensor's name, taken apart.
struct Name {
  int32_t layer = -1;  // -1: outside the layers
  int32_t expert = -1;
  std::string local;    // as in TensorRow: without layer, expert and scale
  std::string grouped;  // the whole name without the expert
  bool scale = false;   // the block scales of a quantised weight
};

/// The number at the start of `text`, up to a '.', which is removed with it; nothing when there is
/// no such number.
std::optional<int32_t> take_number(std::string_view& text) {
  int32_t number = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), number);
  const auto length = static_cast<size_t>(end - text.data());
  const bool canonical = code == std::errc() && number >= 0 && length < text.size() &&
                         text[length] == '.' && (length == 1 || text[0] != '0');
  if (!canonical || number > 1000000) return std::nullopt;
  text.remove_prefix(length + 1);
  return number;
}

Name parse_name(const std::string& text) {
  Name name;
  std::string_view rest = text;
  std::string_view prefix;
  if (rest.starts_with(kLayerPrefix)) {
    std::string_view after = rest.substr(kLayerPrefix.size());
    if (const auto layer = take_number(after)) {
      name.layer = *layer;
      prefix = rest.substr(0, rest.size() - after.size());
      rest = after;
    }
  }
  name.local = rest;
  if (const size_t at = rest.find(kExperts); at != std::string_view::npos) {
    std::string_view after = rest.substr(at + kExperts.size());
    if (const auto expert = take_number(after)) {
      name.expert = *expert;
      name.local = std::string(rest.substr(0, at + kExperts.size())) + std::string(after);
    }
  }
  name.grouped = std::string(prefix) + name.local;
  if (name.local.ends_with(kScale)) {
    name.scale = true;
    name.local.resize(name.local.size() - kScale.size());
  }
  return name;
}

/// A tensor of the list with its row; one of several when it is one expert's.
struct Entry {
  std::string text;
  Name name;
  Dims shape;
  Dtype dtype;
  std::string place;
  const TensorRow* row = nullptr;  // null: unknown name
  Block block = Block::kLayer;
  bool mtp_only = false;  // its name stands in the family's `mtp` rows
};

const TensorRow* find_row(const TensorRows& rows, std::string_view name) {
  const auto row = std::ranges::find(rows, name, &TensorRow::name);
  return row == rows.end() ? nullptr : &*row;
}

/// Fills row, block and mtp_only; false when the family has no such tensor.
bool look_up(const Family& family, Entry& entry) {
  const std::string_view local = entry.name.local;
  entry.row = nullptr;
  entry.mtp_only = false;
  if (entry.name.layer >= 0) {
    entry.block = Block::kLayer;
    entry.row = find_row(family.layer, local);
    if (entry.row == nullptr) {
      entry.row = find_row(family.mtp, local);
      entry.mtp_only = entry.row != nullptr;
    }
    return entry.row != nullptr;
  }
  entry.block = Block::kEmbedding;
  entry.row = find_row(family.embedding, local);
  if (entry.row == nullptr) {
    entry.block = Block::kHead;
    entry.row = find_row(family.head, local);
  }
  return entry.row != nullptr;
}

std::vector<Entry> read_entries(const Value& list, const ModelOptions& options) {
  std::vector<Entry> entries;
  for (const auto& [name, value] : list.items()) {
    if (name.starts_with("_comment") || name == "__metadata__") continue;
    if (value->kind() != Value::Kind::kMap) {
      fail(value->place(), "something else", "a tensor: {\"shape\": [...], \"dtype\": \"...\"}");
    }
    Entry entry{.text = name, .name = parse_name(name), .shape = {}, .dtype = {}, .place = {}};
    entry.place = value->place();
    const Value& shape = value->at("shape");
    if (shape.size() > static_cast<size_t>(kMaxDims)) {
      fail(shape.place(), fmt::format("{} dimensions", shape.size()),
           fmt::format("at most {}", kMaxDims));
    }
    std::vector<int64_t> dims;
    for (size_t i = 0; i < shape.size(); ++i) dims.push_back(shape[i].as_int(1, kMaxElements));
    entry.shape = Dims(dims);
    const Value& dtype = value->at("dtype");
    entry.dtype = parse_dtype(dtype.as_text(), dtype.place());
    if (!options.dtype.empty() && parse_dtype(options.dtype, "--dtype") != entry.dtype) {
      fail(dtype.place(), fmt::format("{} with --dtype {}", dtype.as_text(), options.dtype),
           "no --dtype, as each tensor of the list states its own");
    }
    value->find("shard");         // NCCL M2N: how the file was made
    value->find("data_offsets");  // safetensors
    value->finish();
    entries.push_back(std::move(entry));
  }
  if (entries.empty()) fail(list.place(), "no tensors", "at least one");
  return entries;
}

/// The first family that knows the most of the names. `entries` are left looked up in it.
const Family& choose_family(std::vector<Entry>& entries) {
  const Family* best = nullptr;
  int64_t most = -1;
  for (const Family& family : families()) {
    const int64_t known =
        std::ranges::count_if(entries, [&](Entry& entry) { return look_up(family, entry); });
    if (known <= most) continue;
    most = known;
    best = &family;
  }
  for (Entry& entry : entries) look_up(*best, entry);
  return *best;
}

/// Puts the numbered experts of one projection and layer together: [E, ...]; checks that none is
/// missing.
class ExpertGroups {
 public:
  explicit ExpertGroups(const std::vector<Entry>& entries) {
    for (const Entry& entry : entries) {
      if (entry.row != nullptr && entry.name.expert >= 0) {
        groups_[entry.name.grouped].emplace(entry.name.expert, &entry);
        experts_ = std::max(experts_, entry.name.expert + 1);
      }
    }
    for (const auto& [name, members] : groups_) check(name, members);
  }

  int32_t experts() const { return experts_; }

  /// True the first time: the first expert of a group in the list stands for the whole.
  bool is_first(const Entry& entry) { return seen_.insert(entry.name.grouped).second; }
  bool contains(const std::string& grouped) const { return groups_.contains(grouped); }

 private:
  void check(const std::string& name, const std::map<int32_t, const Entry*>& members) const {
    const Entry& first = *members.begin()->second;
    for (int32_t expert = 0; expert < experts_; ++expert) {
      const auto found = members.find(expert);
      if (found == members.end()) {
        fail(first.place, fmt::format("no expert {} of {}", expert, name),
             fmt::format("experts 0 to {}", experts_ - 1));
      }
      const Entry& entry = *found->second;
      if (entry.shape != first.shape || entry.dtype != first.dtype) {
        fail(entry.place, "another shape or dtype than that of " + first.text, "the same");
      }
    }
  }

  std::map<std::string, std::map<int32_t, const Entry*>> groups_;
  std::set<std::string> seen_;
  int32_t experts_ = 0;
};

Tensor make_tensor(const Entry& entry, const ExpertGroups& groups) {
  Tensor tensor{.name = entry.text,
                .shape = entry.shape,
                .dtype = entry.dtype,
                .role = Role::kReplicated,
                .block = entry.block,
                .layer = entry.name.layer,
                .ffn = false};
  if (entry.row == nullptr) return tensor;
  tensor.role = entry.row->role;
  tensor.ffn = entry.row->ffn && !entry.name.scale;
  const auto expected = static_cast<int32_t>(std::ranges::count(entry.row->shape, ',') + 1);
  if (entry.name.expert >= 0) {
    tensor.name = entry.name.grouped;
    std::vector<int64_t> dims = {groups.experts()};
    for (int dim = 0; dim < entry.shape.count; ++dim) dims.push_back(entry.shape[dim]);
    if (std::ssize(dims) <= kMaxDims) tensor.shape = Dims(dims);
  } else if (groups.contains(entry.text)) {
    fail(entry.place, "all experts in one tensor, and numbered ones as well", "one of the two");
  }
  if (tensor.shape.count != expected) {
    fail(entry.place, fmt::format("{} dimensions", entry.shape.count),
         fmt::format("{}", entry.name.expert >= 0 ? expected - 1 : expected));
  }
  return tensor;
}

/// The number of KV heads, from the rows of a k_proj and the head size that a norm of its heads
/// tells; 0 when neither does.
int32_t find_kv_heads(const std::vector<Entry>& entries) {
  int64_t head_dim = 0;
  const Entry* k_proj = nullptr;
  for (const Entry& entry : entries) {
    const std::string& local = entry.name.local;
    if (local == "self_attn.k_norm.weight" || local == "self_attn.q_norm.weight") {
      head_dim = entry.shape[0];
    } else if (local == "self_attn.k_proj.weight" && !entry.name.scale && k_proj == nullptr) {
      k_proj = &entry;
    }
  }
  if (head_dim == 0 || k_proj == nullptr) return 0;
  const int64_t rows = k_proj->shape[0];
  if (rows % head_dim != 0) {
    fail(k_proj->place, fmt::format("{} rows", rows), fmt::format("heads of {} rows", head_dim));
  }
  return static_cast<int32_t>(rows / head_dim);
}

}  // namespace

Model read_tensor_list(const Value& list, const ModelOptions& options) {
  std::vector<Entry> entries = read_entries(list, options);
  const Family& family = choose_family(entries);
  std::set<int32_t> mtp_layers;
  for (const Entry& entry : entries) {
    if (entry.row == nullptr && !options.unknown_replicate) {
      fail(entry.place,
           "a tensor name that the family " + std::string(family.name) + " does not have",
           "a known one, or --unknown replicate");
    }
    if (entry.mtp_only) mtp_layers.insert(entry.name.layer);
  }
  if (!options.mtp) {
    std::erase_if(entries,
                  [&](const Entry& entry) { return mtp_layers.contains(entry.name.layer); });
  }

  Model model;
  model.family = family.name;
  model.kv_heads = find_kv_heads(entries);
  ExpertGroups groups(entries);
  model.experts = groups.experts();
  std::set<int32_t> layers;
  bool embedding = false, head = false;
  for (const Entry& entry : entries) {
    const bool numbered = entry.row != nullptr && entry.name.expert >= 0;
    if (numbered && !groups.is_first(entry)) continue;
    Tensor tensor = make_tensor(entry, groups);
    check_tensor(tensor, entry.place);
    if (mtp_layers.contains(tensor.layer)) {
      tensor.block = Block::kHead;
      tensor.layer = -1;
      tensor.ffn = false;
    }
    if (tensor.layer >= 0) layers.insert(tensor.layer);
    if (tensor.role == Role::kExpertColumn) {
      if (model.experts == 0) model.experts = static_cast<int32_t>(tensor.shape[0]);
      if (tensor.shape[0] != model.experts) {
        fail(entry.place, fmt::format("{} experts", tensor.shape[0]),
             fmt::format("{}, as elsewhere", model.experts));
      }
    }
    if (tensor.role == Role::kVocab) {
      embedding = embedding || tensor.block == Block::kEmbedding;
      head = head || tensor.name == "lm_head.weight";
    }
    model.tensors.push_back(std::move(tensor));
  }
  model.tied_embeddings = embedding && !head;
  model.layers = static_cast<int32_t>(layers.size());
  if (!layers.empty() && *layers.rbegin() >= model.layers) {
    int32_t missing = 0;
    while (layers.contains(missing)) ++missing;
    fail(list.place(), fmt::format("no tensor of layer {}", missing),
         fmt::format("some, as layer {} has", *layers.rbegin()));
  }
  return model;
}

}  // namespace refit
