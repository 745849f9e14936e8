#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace refit {

/// A strict view of a YAML or JSON text: every value knows its place ("file:line: key.path"), every
/// accessor checks kind and range, duplicate keys are refused while reading, and keys that nobody
/// asked for are errors (`finish`). YAML is read by yaml-cpp, files that end in .json by
/// nlohmann/json; both end in this one tree. YAML anchors, aliases, tags and second documents are
/// refused.
///
/// Values share their tree: copies are cheap and may outlive the value they came from; the
/// references that accessors return live as long as the value they were asked of. Reading marks
/// what was asked for: one thread at a time.
class Value {
 public:
  enum class Kind { kNull, kScalar, kList, kMap };

  Kind kind() const;
  bool is_null() const;
  std::string place() const;  // "file:line: path", for error messages
  int line() const;           // 1-based; of the key, for a value of a map

  // Scalars. `as_text` returns the scalar as written; the others convert or fail. Numbers and truth
  // values may not be quoted.
  const std::string& as_text() const;
  int64_t as_int(int64_t lo, int64_t hi) const;
  double as_number() const;
  bool as_bool() const;
  double as_rate() const;    // with unit, bytes/s
  double as_time() const;    // with unit, seconds
  int64_t as_bytes() const;  // with unit, bytes

  // Lists.
  size_t size() const;
  const Value& operator[](size_t index) const;

  // Maps. `at` fails when the key is absent, `find` returns null. Both mark the key as used;
  // `items`, in file order, marks all.
  const Value& at(std::string_view key) const;
  const Value* find(std::string_view key) const;
  std::vector<std::pair<std::string, const Value*>> items() const;

  /// Fails with the first key of this map that was never asked for, and lists the keys that were.
  /// Keys that start with "_comment" are tolerated.
  void finish() const;

  struct Node;
  explicit Value(std::shared_ptr<Node> node) : node_(std::move(node)) {}

 private:
  std::shared_ptr<Node> node_;
};

/// `name` is used in messages. JSON when `json`, else YAML.
Value parse_document(std::string_view text, const std::string& name, bool json);
Value load_document(const std::string& path);

}  // namespace refit
