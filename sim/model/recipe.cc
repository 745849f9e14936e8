#include "sim/model/recipe.h"

#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/units.h"

namespace refit {

struct Recipe::Node {
  enum class Kind { kNull, kText, kList, kMap } kind = Kind::kNull;
  std::string key;  // in the map around it
  std::string text;
  std::vector<Node> children;  // of a map or list
  std::string place;           // "file:line"

  Node* find(std::string_view name) {
    const auto child = std::find_if(children.begin(), children.end(),
                                    [&](const Node& node) { return node.key == name; });
    return child == children.end() ? nullptr : &*child;
  }
  const Node* find(std::string_view name) const { return const_cast<Node*>(this)->find(name); }
};

namespace {

using Node = Recipe::Node;
using Path = std::vector<std::string>;

constexpr int kDeepest = 50;  // files of `defaults`, references to references, maps in maps
constexpr int64_t kMostValues = 1'000'000;  // of a file, with what its aliases repeat

/// Sets or replaces a key.
void put(Node& map, Node&& child) {
  if (Node* old = map.find(child.key)) {
    *old = std::move(child);
  } else {
    map.children.push_back(std::move(child));
  }
}

/// Our tree of a YAML one. "<<" brings the keys of other maps, which the map's own go before.
Node convert(const YAML::Node& yaml, const std::string& file, int depth, int64_t& values) {
  Node node;
  node.place = fmt::format("{}:{}", file, yaml.Mark().line + 1);
  if (depth > kDeepest) fail(node.place, fmt::format("nested deeper than {} levels", kDeepest));
  if (++values > kMostValues) fail(node.place, "more than a million values", "fewer");
  if (yaml.IsScalar()) {
    node.kind = Node::Kind::kText;
    node.text = yaml.Scalar();
  } else if (yaml.IsSequence()) {
    node.kind = Node::Kind::kList;
    for (const YAML::Node& child : yaml) {
      node.children.push_back(convert(child, file, depth + 1, values));
    }
  } else if (yaml.IsMap()) {
    node.kind = Node::Kind::kMap;
    constexpr std::string_view kMerge = "<<";
    for (const auto& entry : yaml) {
      const YAML::Node &key = entry.first, &value = entry.second;
      if (!key.IsScalar() || key.Scalar() != kMerge) continue;
      Node merged = convert(value, file, depth + 1, values);
      const bool list = merged.kind == Node::Kind::kList;
      if (list) std::reverse(merged.children.begin(), merged.children.end());
      if (!list) merged.children = {Node(merged)};
      for (Node& map : merged.children) {
        for (Node& child : map.children) put(node, std::move(child));
      }
    }
    for (const auto& entry : yaml) {
      const YAML::Node &key = entry.first, &value = entry.second;
      if (!key.IsScalar()) fail(node.place, "a key that is no text", "text");
      if (key.Scalar() == kMerge) continue;
      Node child = convert(value, file, depth + 1, values);
      child.key = key.Scalar();
      child.place = fmt::format("{}:{}", file, key.Mark().line + 1);
      put(node, std::move(child));
    }
  }
  return node;
}

Node parse(const std::string& file) {
  try {
    int64_t values = 0;
    return convert(YAML::Load(read_file(file)), file, 0, values);
  } catch (const YAML::Exception& error) {
    fail(fmt::format("{}:{}", file, error.mark.line + 1), error.msg, "YAML");
  }
}

/// Maps are merged key by key, all else is replaced.
void merge(Node& base, Node over) {
  if (base.kind != Node::Kind::kMap || over.kind != Node::Kind::kMap) {
    base = std::move(over);
    return;
  }
  base.place = over.place;
  for (Node& child : over.children) {
    if (Node* old = base.find(child.key)) {
      merge(*old, std::move(child));
    } else {
      base.children.push_back(std::move(child));
    }
  }
}

/// The file over the files that its `defaults` names, which are relative to it.
Node load_chain(Node own, const std::string& file, int depth) {
  Node* defaults = own.find("defaults");
  if (defaults == nullptr) return own;
  if (depth > kDeepest) {
    fail(defaults->place + ": defaults", "a chain of more than 50 files, or one without an end",
         "one that ends");
  }
  std::vector<std::string> parents;
  if (defaults->kind == Node::Kind::kText) {
    parents.push_back(defaults->text);
  } else {
    for (const Node& parent : defaults->children) parents.push_back(parent.text);
  }
  Node result;
  result.kind = Node::Kind::kMap;
  for (const std::string& parent : parents) {
    const std::string path = (std::filesystem::path(file).parent_path() / parent).string();
    std::error_code ignored;
    if (!std::filesystem::is_regular_file(path, ignored)) {
      fail(defaults->place + ": defaults", quote(parent), "a file beside this one");
    }
    merge(result, load_chain(parse(path), path, depth + 1));
  }
  std::erase_if(own.children, [](const Node& child) { return child.key == "defaults"; });
  merge(result, std::move(own));
  return result;
}

/// A recipe of somebody else, by the keys that only it has.
std::string_view other_kind(const Node& root) {
  const auto has = [&](std::string_view key) { return root.find(key) != nullptr; };
  if (has("actor_train") && has("actor_infer")) return "a ROLL recipe";
  if (has("actor_rollout_ref")) return "a veRL recipe";
  if (has("actor") && has("rollout")) return "an AReaL recipe";
  return "";
}

Path split_path(std::string_view text) {
  Path path;
  while (!text.empty()) {
    const size_t end = std::min(text.find('.'), text.size());
    path.emplace_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return path;
}

}  // namespace

std::optional<Recipe> Recipe::load(const std::string& path) {
  constexpr const char* kExpected = "a NeMo RL recipe, or the layouts in a line each";
  const std::string extension = std::filesystem::path(path).extension().string();
  if (extension == ".toml") fail(path, "a TOML file, as prime-rl's recipes are", kExpected);
  if (extension != ".yaml" && extension != ".yml") return std::nullopt;
  Node own;
  try {
    own = parse(path);
  } catch (const Error&) {
    return std::nullopt;  // for the strict reader, which says what is wrong
  }
  if (const std::string_view kind = other_kind(own); !kind.empty()) {
    fail(path, std::string(kind), kExpected);
  }
  if (own.find("defaults") == nullptr && own.find("policy") == nullptr) return std::nullopt;
  return Recipe(std::make_shared<const Node>(load_chain(std::move(own), path, 0)), path);
}

const Recipe::Node* Recipe::find(const Path& path) const {
  const Node* node = root_.get();
  for (const std::string& key : path) {
    node = node->find(key);
    if (node == nullptr) return nullptr;
  }
  return node->kind == Node::Kind::kNull ? nullptr : node;
}

std::string Recipe::place(std::string_view path) const {
  const Node* node = find(split_path(path));
  return fmt::format("{}: {}", node == nullptr ? name_ : node->place, path);
}

bool Recipe::contains(std::string_view path) const { return find(split_path(path)) != nullptr; }

bool Recipe::is_empty(std::string_view path) const {
  const Node* node = find(split_path(path));
  return node == nullptr || (node->text.empty() && node->children.empty());
}

/// The value, references resolved; nothing when it is absent or null.
std::optional<std::string> Recipe::read(const Path& path, int depth) const {
  const Node* node = find(path);
  if (node == nullptr) return std::nullopt;
  const std::string where = fmt::format("{}: {}", node->place, fmt::join(path, "."));
  if (node->kind != Node::Kind::kText) fail(where, "a map or a list", "a single value");
  if (depth > kDeepest) fail(where, "references that come back to themselves", "a value");
  std::string value = expand(node->text, path, depth);
  if (value == "null" && node->text != "null") return std::nullopt;
  return value;
}

/// `text` with its "${...}" replaced; references are relative to the place of `path`.
std::string Recipe::expand(const std::string& text, const Path& path, int depth) const {
  const size_t begin = text.find("${");
  if (begin == std::string::npos) return text;
  int open = 0;
  for (size_t at = begin; at < text.size(); ++at) {
    if (text[at] == '{') ++open;
    if (text[at] != '}' || --open > 0) continue;
    const std::string inner = text.substr(begin + 2, at - begin - 2);
    return text.substr(0, begin) + evaluate(inner, path, depth) +
           expand(text.substr(at + 1), path, depth);
  }
  fail(place(fmt::format("{}", fmt::join(path, "."))), quote(text), "a \"}\" for every \"${\"");
}

std::string Recipe::evaluate(const std::string& reference, const Path& path, int depth) const {
  const std::string where = place(fmt::format("{}", fmt::join(path, ".")));
  if (const size_t colon = reference.find(':'); colon != std::string::npos) {
    if (reference.substr(0, colon) != "mul") {
      fail(where, quote("${" + reference + "}"), "a reference or ${mul:a, b}");
    }
    const std::string numbers = expand(reference.substr(colon + 1), path, depth);
    int64_t product = 1;
    for (size_t begin = 0; begin <= numbers.size();) {
      const size_t end = std::min(numbers.find(',', begin), numbers.size());
      std::string number = numbers.substr(begin, end - begin);
      std::erase(number, ' ');
      product *= parse_int(number, 0, INT32_MAX, where);
      if (product > INT32_MAX) fail(where, "a product above 2^31", "a smaller one");
      begin = end + 1;
    }
    return std::to_string(product);
  }
  // Leading dots: one is the map that the value stands in, each more the map around it.
  const size_t dots = std::min(reference.find_first_not_of('.'), reference.size());
  Path target;
  if (dots > 0) {
    if (dots > path.size())
      fail(where, quote("${" + reference + "}"), "a reference inside the file");
    target.assign(path.begin(), path.end() - static_cast<std::ptrdiff_t>(dots));
  }
  for (const std::string& key : split_path(std::string_view(reference).substr(dots))) {
    target.push_back(key);
  }
  if (find(target) == nullptr) {
    // A null is a value; an unknown key is not.
    Path parent(target.begin(), target.end() - 1);
    const Node* map = find(parent);
    if (map != nullptr && map->find(target.back()) != nullptr) return "null";
    fail(where, quote("${" + reference + "}"), "a key that there is");
  }
  return *read(target, depth + 1);
}

std::string Recipe::text(std::string_view path, std::string_view fallback) const {
  return read(split_path(path), 0).value_or(std::string(fallback));
}

int32_t Recipe::number(std::string_view path, int32_t fallback) const {
  const auto value = read(split_path(path), 0);
  return value ? static_cast<int32_t>(parse_int(*value, 0, 1 << 20, place(path))) : fallback;
}

bool Recipe::flag(std::string_view path) const {
  const auto value = read(split_path(path), 0);
  if (!value) return false;
  for (const auto& [word, truth] : {std::pair{"true", true},
                                    {"True", true},
                                    {"TRUE", true},
                                    {"false", false},
                                    {"False", false},
                                    {"FALSE", false}}) {
    if (*value == word) return truth;
  }
  fail(place(path), quote(*value), "true or false");
}

}  // namespace refit
