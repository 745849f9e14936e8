#include "sim/model/shape.h"

#include <charconv>

namespace refit {
namespace {

std::optional<int64_t> evaluate_factor(std::string_view text, const KeyValue& value_of) {
  int64_t value = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
  return code == std::errc() ? value : value_of(text);
}

}  // namespace

std::vector<std::string_view> split_dimensions(std::string_view shape) {
  std::vector<std::string_view> dimensions;
  split(shape, ',', [&](std::string_view dimension) {
    if (dimension.starts_with(' ')) dimension.remove_prefix(1);
    dimensions.push_back(dimension);
  });
  return dimensions;
}

std::optional<int64_t> evaluate_product(std::string_view product, const KeyValue& value_of) {
  const size_t at = product.find_first_of("*/");
  const auto left = evaluate_factor(product.substr(0, at), value_of);
  if (at == std::string_view::npos || !left) return left;
  const auto right = evaluate_factor(product.substr(at + 1), value_of);
  if (!right) return std::nullopt;
  if (product[at] == '*') return *left * *right;  // both below 2^31
  if (*left % *right != 0) return std::nullopt;
  return *left / *right;
}

std::optional<int64_t> evaluate(std::string_view dimension, const KeyValue& value_of) {
  std::optional<int64_t> sum = 0;
  split(dimension, '|', [&](std::string_view block) {
    split(block, '+', [&](std::string_view product) {
      const auto value = evaluate_product(product, value_of);
      sum = sum && value ? std::optional(*sum + *value) : std::nullopt;
    });
  });
  return sum;
}

std::optional<std::vector<CutBlock>> find_blocks(const TensorRow& row, const KeyValue& value_of) {
  const auto dimensions = split_dimensions(row.shape);
  const int32_t cut = tp_dimension(row.role);
  std::vector<CutBlock> blocks;
  if (cut < 0 || cut >= std::ssize(dimensions)) return blocks;
  const std::string_view dimension = dimensions[static_cast<size_t>(cut)];
  bool known = true;
  split(dimension, '|', [&](std::string_view expression) {
    CutBlock block;
    const std::string_view key = expression.substr(0, expression.find_first_of("*/+"));
    if (key.ends_with("_heads")) block.heads = static_cast<int32_t>(value_of(key).value_or(0));
    const auto extent = evaluate(expression, value_of);
    known = known && extent;
    block.extent = extent.value_or(0);
    blocks.push_back(block);
  });
  if (blocks.size() > 1) return known ? std::optional(std::move(blocks)) : std::nullopt;
  if (!known || blocks.front().heads == 0) blocks.clear();
  return blocks;
}

}  // namespace refit
