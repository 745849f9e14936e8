#include <fmt/core.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <map>
#include <optional>
#include <set>

#include "base/error.h"
#include "sim/model/architecture.h"
#include "sim/model/readers.h"
#include "sim/model/shape.h"

namespace refit {
namespace {

constexpr std::string_view kLayerPrefix = "model.layers.";
constexpr std::string_view kMtpPrefix = "mtp.layers.";
constexpr std::string_view kExperts = ".experts.";
constexpr std::string_view kScale = "_scale_inv";

/// A tensor's name, taken apart.
struct Name {
  int32_t layer = -1;  // -1: outside the layers
  int32_t expert = -1;
  std::string local;    // as in TensorRow: without layer, expert and scale
  std::string grouped;  // the whole name without the expert
  bool scale = false;   // the block scales of a quantised weight
  bool mtp = false;     // "mtp.layers."
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
  for (const std::string_view layers : {kLayerPrefix, kMtpPrefix}) {
    if (!rest.starts_with(layers)) continue;
    std::string_view after = rest.substr(layers.size());
    if (const auto layer = take_number(after)) {
      name.layer = *layer;
      name.mtp = layers == kMtpPrefix;
      prefix = rest.substr(0, rest.size() - after.size());
      rest = after;
      break;
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
  bool mtp_only = false;  // its name stands in the family's `mtp` or `mtp_apart` rows
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
  if (entry.name.mtp && family.mtp_apart.empty()) return false;
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
  if (entry.row == nullptr) {
    entry.row = find_row(family.mtp_apart, local);
    entry.mtp_only = entry.row != nullptr;
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
                .ffn = false,
                .blocks = {}};
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

/// The configuration's keys that the shapes tell: from "vocab_size, hidden_size" both, from
/// "num_key_value_heads*head_dim" one when the other is known.
class Keys {
 public:
  explicit Keys(const std::vector<Entry>& entries) {
    size_t known = 0;
    do {
      known = values_.size();
      for (const Entry& entry : entries) learn(entry);
    } while (values_.size() > known);
  }

  std::optional<int64_t> find(std::string_view key) const {
    const auto found = values_.find(key);
    return found == values_.end() ? std::nullopt : std::optional(found->second);
  }

 private:
  void learn(const Entry& entry) {
    if (entry.row == nullptr || entry.name.scale) return;
    auto dimensions = split_dimensions(entry.row->shape);
    if (entry.name.expert >= 0) dimensions.erase(dimensions.begin());  // of one expert
    if (std::ssize(dimensions) != entry.shape.count) return;
    for (size_t dim = 0; dim < dimensions.size(); ++dim) {
      const std::string_view text = dimensions[dim];
      const int64_t extent = entry.shape[static_cast<int>(dim)];
      const size_t star = text.find('*');
      if (text.find_first_of("+|/") != std::string_view::npos) continue;
      if (star == std::string_view::npos) {
        set(text, extent);
      } else if (const auto left = factor(text.substr(0, star))) {
        divide(entry, text.substr(star + 1), extent, *left);
      } else if (const auto right = factor(text.substr(star + 1))) {
        divide(entry, text.substr(0, star), extent, *right);
      }
    }
  }

  std::optional<int64_t> factor(std::string_view text) const {
    return evaluate_product(text, [this](std::string_view key) { return find(key); });
  }

  void set(std::string_view key, int64_t value) {
    if (!std::isdigit(static_cast<unsigned char>(key[0]))) values_.emplace(key, value);
  }

  void divide(const Entry& entry, std::string_view key, int64_t extent, int64_t by) {
    if (extent % by != 0) {
      if (!key.ends_with("_heads")) return;
      fail(entry.place, fmt::format("{} rows", extent), fmt::format("heads of {} rows", by));
    }
    set(key, extent / by);
  }

  std::map<std::string_view, int64_t> values_;
};

std::vector<CutBlock> blocks_of(const Entry& entry, const Keys& keys) {
  const auto blocks = find_blocks(*entry.row, [&](std::string_view key) { return keys.find(key); });
  if (!blocks) {
    fail(entry.place, "a tensor of several blocks, whose sizes a list of tensors does not tell",
         "the checkpoint's config.json");
  }
  return *blocks;
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
    if (entry.mtp_only && entry.name.layer >= 0) mtp_layers.insert(entry.name.layer);
  }
  const auto is_mtp = [&](const Entry& entry) {
    return entry.mtp_only || entry.name.mtp || mtp_layers.contains(entry.name.layer);
  };
  if (!options.mtp) std::erase_if(entries, is_mtp);

  Model model;
  model.family = family.name;
  const Keys keys(entries);
  model.kv_heads = static_cast<int32_t>(keys.find("num_key_value_heads").value_or(0));
  ExpertGroups groups(entries);
  model.experts = groups.experts();
  std::set<int32_t> layers;
  bool embedding = false, head = false;
  for (const Entry& entry : entries) {
    const bool numbered = entry.row != nullptr && entry.name.expert >= 0;
    if (numbered && !groups.is_first(entry)) continue;
    Tensor tensor = make_tensor(entry, groups);
    if (entry.row != nullptr && !entry.name.scale) tensor.blocks = blocks_of(entry, keys);
    check_tensor(tensor, entry.place);
    if (is_mtp(entry)) {
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
