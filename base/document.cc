#include "base/document.h"

#include <fmt/core.h>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include <charconv>
#include <cmath>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/units.h"

namespace refit {
namespace {

constexpr size_t kDeepest = 100;  // nesting; real inputs have less than 10

/// Where a value stands in its document. Kept apart from the tree, so that a value knows its path
/// without its parent.
struct Path {
  std::shared_ptr<const Path> parent;  // null at the root
  std::string key;                     // the root's: name of the document
  bool in_list = false;                // then key is "[3]"
};

std::string print_path(const Path& path) {
  if (!path.parent) return "";
  const std::string before = print_path(*path.parent);
  return before + (before.empty() || path.in_list ? "" : ".") + path.key;
}

const std::string& document_name(const Path& path) {
  return path.parent ? document_name(*path.parent) : path.key;
}

std::string_view kind_name(Value::Kind kind) {
  switch (kind) {
    case Value::Kind::kNull:
      return "nothing";
    case Value::Kind::kScalar:
      return "a single value";
    case Value::Kind::kList:
      return "a list";
    case Value::Kind::kMap:
      return "a map";
  }
  return "";
}

}  // namespace

struct Value::Node {
  Kind kind = Kind::kNull;
  bool quoted = false;  // a JSON string or a quoted YAML scalar
  int line = 1;
  std::shared_ptr<const Path> path;
  std::string text;           // of a scalar
  std::vector<Value> values;  // of a list or a map, in file order
  // Of a map. Keys view the keys in the paths of `values`.
  std::map<std::string_view, size_t> index;
  mutable std::set<std::string, std::less<>> asked;
};

namespace {

std::string describe(const Value& value) {
  return value.kind() == Value::Kind::kScalar ? quote(value.as_text())
                                              : std::string(kind_name(value.kind()));
}

void expect_kind(const Value& value, Value::Kind kind) {
  if (value.kind() != kind) fail(value.place(), describe(value), kind_name(kind));
}

/// The tree from a stream of events, the common end of both parsers. In a map, a scalar that has no
/// key yet is the key.
class TreeBuilder {
 public:
  explicit TreeBuilder(const std::string& name) : name_(name) {}

  void scalar(int line, std::string text, bool quoted) {
    if (expects_key()) {
      key_ = std::make_shared<Path>(Path{open_.back()->path, std::move(text), false});
      key_line_ = line;
      if (open_.back()->index.contains(key_->key)) {
        fail(fmt::format("{}:{}: {}", name_, line, print_path(*key_)), "the key a second time",
             "it once");
      }
      return;
    }
    Value::Node& node = add(line, Value::Kind::kScalar);
    node.text = std::move(text);
    node.quoted = quoted;
  }
  void null(int line) { add(line, Value::Kind::kNull); }
  void begin(int line, Value::Kind kind) {
    if (open_.size() == kDeepest) {
      fail(fmt::format("{}:{}", name_, line),
           fmt::format("nested deeper than {} levels", kDeepest));
    }
    open_.push_back(&add(line, kind));
  }
  void end() { open_.pop_back(); }

  /// An empty document is null.
  Value take() {
    if (!root_) add(1, Value::Kind::kNull);
    return Value(root_);
  }
  const std::string& name() const { return name_; }

 private:
  bool expects_key() const {
    return !open_.empty() && open_.back()->kind == Value::Kind::kMap && !key_;
  }

  Value::Node& add(int line, Value::Kind kind) {
    if (expects_key()) {
      fail(fmt::format("{}:{}", name_, line), fmt::format("{} as a key", kind_name(kind)), "text");
    }
    auto node = std::make_shared<Value::Node>();
    node->kind = kind;
    node->line = line;
    if (open_.empty()) {
      node->path = std::make_shared<Path>(Path{nullptr, name_, false});
      root_ = node;
      return *node;
    }
    Value::Node& parent = *open_.back();
    if (parent.kind == Value::Kind::kMap) {
      node->line = key_line_;
      node->path = std::exchange(key_, nullptr);
      parent.index.emplace(node->path->key, parent.values.size());
    } else {
      node->path = std::make_shared<Path>(
          Path{parent.path, fmt::format("[{}]", parent.values.size()), true});
    }
    parent.values.emplace_back(node);
    return *node;
  }

  std::string name_;
  std::shared_ptr<Value::Node> root_;
  std::vector<Value::Node*> open_;
  std::shared_ptr<const Path> key_;
  int key_line_ = 0;
};

class YamlEvents : public YAML::EventHandler {
 public:
  explicit YamlEvents(TreeBuilder& tree) : tree_(tree) {}

  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark& mark, YAML::anchor_t) override { tree_.null(line(mark)); }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override {
    refuse(mark, "an alias (*name)", "the value itself");
  }
  void OnAnchor(const YAML::Mark& mark, const std::string&) override {
    refuse(mark, "an anchor (&name)", "a value without one");
  }
  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t,
                const std::string& value) override {
    check_tag(mark, tag);
    tree_.scalar(line(mark), value, tag == "!");  // yaml-cpp's mark of quoted and block scalars
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t,
                       YAML::EmitterStyle::value) override {
    check_tag(mark, tag);
    tree_.begin(line(mark), Value::Kind::kList);
  }
  void OnSequenceEnd() override { tree_.end(); }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t,
                  YAML::EmitterStyle::value) override {
    check_tag(mark, tag);
    tree_.begin(line(mark), Value::Kind::kMap);
  }
  void OnMapEnd() override { tree_.end(); }

 private:
  static int line(const YAML::Mark& mark) { return mark.line + 1; }
  [[noreturn]] void refuse(const YAML::Mark& mark, std::string_view found,
                           std::string_view expected) {
    fail(fmt::format("{}:{}", tree_.name(), line(mark)), found, expected);
  }
  void check_tag(const YAML::Mark& mark, const std::string& tag) {
    if (tag != "" && tag != "?" && tag != "!")
      refuse(mark, "the tag " + quote(tag), "a value without one");
  }

  TreeBuilder& tree_;
};

void parse_yaml(std::string_view text, TreeBuilder& tree) {
  std::istringstream stream{std::string(text)};
  try {
    YAML::Parser parser(stream);
    YamlEvents events(tree);
    if (parser.HandleNextDocument(events) && parser) {
      fail(tree.name(), "more than one YAML document", "one");
    }
  } catch (const YAML::Exception& error) {
    fail(fmt::format("{}:{}", tree.name(), error.mark.line + 1), "not valid YAML: " + error.msg);
  }
}

/// Feeds JSON to the parser and knows the line of the last byte taken that was not blank: the line
/// of the latest token, as the parser looks at most one byte past it.
struct LineCounter {
  int line = 1;
  int token_line = 1;
};

class CountingIterator {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  CountingIterator(const char* at, LineCounter* counter) : at_(at), counter_(counter) {}
  reference operator*() const { return *at_; }
  CountingIterator& operator++() {
    if (*at_ == '\n') {
      ++counter_->line;
    } else if (*at_ != ' ' && *at_ != '\t' && *at_ != '\r') {
      counter_->token_line = counter_->line;
    }
    ++at_;
    return *this;
  }
  bool operator==(const CountingIterator& other) const { return at_ == other.at_; }

 private:
  const char* at_;
  LineCounter* counter_;
};

class JsonEvents : public nlohmann::json_sax<nlohmann::json> {
 public:
  JsonEvents(TreeBuilder& tree, const LineCounter& counter) : tree_(tree), counter_(counter) {}

  bool null() override { return tree_.null(line()), true; }
  bool boolean(bool value) override { return scalar(value ? "true" : "false", false); }
  bool number_integer(number_integer_t value) override {
    return scalar(std::to_string(value), false);
  }
  bool number_unsigned(number_unsigned_t value) override {
    return scalar(std::to_string(value), false);
  }
  bool number_float(number_float_t, const string_t& text) override { return scalar(text, false); }
  bool string(string_t& text) override { return scalar(std::move(text), true); }
  bool binary(binary_t&) override { return false; }
  bool start_object(std::size_t) override { return tree_.begin(line(), Value::Kind::kMap), true; }
  bool key(string_t& text) override { return scalar(std::move(text), true); }
  bool end_object() override { return tree_.end(), true; }
  bool start_array(std::size_t) override { return tree_.begin(line(), Value::Kind::kList), true; }
  bool end_array() override { return tree_.end(), true; }
  bool parse_error(std::size_t, const std::string&,
                   const nlohmann::json::exception& error) override {
    // "[json.exception.parse_error.101] parse error at line 3, column 5: REASON"; we say the place
    // in our own way.
    std::string_view reason = error.what();
    if (const size_t at = reason.find(": "); at != std::string_view::npos)
      reason.remove_prefix(at + 2);
    std::string shown;
    for (char c : reason) shown += static_cast<unsigned char>(c) < 0x20 ? '?' : c;
    fail(fmt::format("{}:{}", tree_.name(), line()), "not valid JSON: " + shown);
  }

 private:
  int line() const { return counter_.token_line; }
  bool scalar(std::string text, bool quoted) {
    tree_.scalar(line(), std::move(text), quoted);
    return true;
  }

  TreeBuilder& tree_;
  const LineCounter& counter_;
};

void parse_json(std::string_view text, TreeBuilder& tree) {
  LineCounter counter;
  JsonEvents events(tree, counter);
  const CountingIterator first(text.data(), &counter);
  const CountingIterator last(text.data() + text.size(), &counter);
  nlohmann::json::sax_parse(first, last, &events);
}

}  // namespace

Value::Kind Value::kind() const { return node_->kind; }
bool Value::is_null() const { return node_->kind == Kind::kNull; }
int Value::line() const { return node_->line; }

std::string Value::place() const {
  const std::string path = print_path(*node_->path);
  return fmt::format("{}:{}{}{}", document_name(*node_->path), node_->line,
                     path.empty() ? "" : ": ", path);
}

const std::string& Value::as_text() const {
  expect_kind(*this, Kind::kScalar);
  return node_->text;
}

int64_t Value::as_int(int64_t lo, int64_t hi) const {
  if (kind() != Kind::kScalar || node_->quoted) {
    fail(place(), describe(*this), fmt::format("an integer from {} to {}", lo, hi));
  }
  return parse_int(node_->text, lo, hi, place());
}

double Value::as_number() const {
  double number = 0;
  bool ok = kind() == Kind::kScalar && !node_->quoted;
  if (ok) {
    const char* end = node_->text.data() + node_->text.size();
    const auto [stop, code] = std::from_chars(node_->text.data(), end, number);
    ok = code == std::errc() && stop == end && std::isfinite(number);
  }
  if (!ok) fail(place(), describe(*this), "a number");
  return number;
}

bool Value::as_bool() const {
  const bool plain = kind() == Kind::kScalar && !node_->quoted;
  if (plain && node_->text == "true") return true;
  if (plain && node_->text == "false") return false;
  fail(place(), describe(*this), "true or false");
}

double Value::as_rate() const { return parse_rate(as_text(), place()); }
double Value::as_time() const { return parse_time(as_text(), place()); }
int64_t Value::as_bytes() const { return parse_bytes(as_text(), place()); }

size_t Value::size() const {
  expect_kind(*this, Kind::kList);
  return node_->values.size();
}

const Value& Value::operator[](size_t position) const {
  if (position >= size()) {
    fail(place(), fmt::format("a list of {}", size()), fmt::format("at least {}", position + 1));
  }
  return node_->values[position];
}

const Value& Value::at(std::string_view key) const {
  const Value* value = find(key);
  if (value == nullptr) fail(place(), "no key " + quote(key), "one");
  return *value;
}

const Value* Value::find(std::string_view key) const {
  expect_kind(*this, Kind::kMap);
  if (!node_->asked.contains(key)) node_->asked.emplace(key);
  const auto found = node_->index.find(key);
  return found == node_->index.end() ? nullptr : &node_->values[found->second];
}

std::vector<std::pair<std::string, const Value*>> Value::items() const {
  expect_kind(*this, Kind::kMap);
  std::vector<std::pair<std::string, const Value*>> out;
  out.reserve(node_->values.size());
  for (const Value& value : node_->values) {
    out.emplace_back(value.node_->path->key, &value);
    node_->asked.insert(out.back().first);
  }
  return out;
}

void Value::finish() const {
  expect_kind(*this, Kind::kMap);
  for (const Value& value : node_->values) {
    const std::string& key = value.node_->path->key;
    if (key.starts_with("_comment") || node_->asked.contains(key)) continue;
    std::string known;
    for (const std::string& name : node_->asked) known += (known.empty() ? "" : ", ") + name;
    fail(value.place(), "an unknown key", "one of: " + known);
  }
}

Value parse_document(std::string_view text, const std::string& name, bool json) {
  TreeBuilder tree(name);
  if (json) {
    parse_json(text, tree);
  } else {
    parse_yaml(text, tree);
  }
  return tree.take();
}

Value load_document(const std::string& path) {
  return parse_document(read_file(path), path, path.ends_with(".json"));
}

}  // namespace refit
