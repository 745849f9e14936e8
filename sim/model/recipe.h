#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace refit {

/// A NeMo RL recipe: YAML whose `defaults:` names the files that it overrides, map by map, and
/// whose values may refer to others ("${policy.precision}", "${..max_length}", "${mul:${a},
/// ${b}}"). The rules are OmegaConf's; only what is asked for is looked at, as a recipe says much
/// else.
class Recipe {
 public:
  /// Reads the file and all that it names. Nothing when it is no recipe of NeMo RL; a recipe of
  /// another framework is refused by its kind.
  static std::optional<Recipe> load(const std::string& path);

  // By path, "policy.megatron_cfg.enabled". Absent and null are the same. Errors name file, line
  // and path.
  bool contains(std::string_view path) const;
  bool is_empty(std::string_view path) const;  // absent, or an empty map, list or text
  std::string text(std::string_view path, std::string_view fallback) const;
  int32_t number(std::string_view path, int32_t fallback) const;
  bool flag(std::string_view path) const;  // false when absent

  /// "file:line: path", of an absent one without a line.
  std::string place(std::string_view path) const;

  struct Node;

 private:
  explicit Recipe(std::shared_ptr<const Node> root, std::string name)
      : root_(std::move(root)), name_(std::move(name)) {}

  const Node* find(const std::vector<std::string>& path) const;
  std::optional<std::string> read(const std::vector<std::string>& path, int depth) const;
  std::string expand(const std::string& text, const std::vector<std::string>& path,
                     int depth) const;
  std::string evaluate(const std::string& reference, const std::vector<std::string>& path,
                       int depth) const;

  std::shared_ptr<const Node> root_;
  std::string name_;
};

}  // namespace refit
