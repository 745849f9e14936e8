#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>
#include <vector>

#include "sim/model/architecture.h"

namespace refit {

// The expressions of TensorRow::shape.

/// A configuration key's value; nothing where it is not known.
using KeyValue = std::function<std::optional<int64_t>(std::string_view key)>;

/// Calls `use` with each part of `text` between separators.
template <typename Use>
void split(std::string_view text, char separator, Use use) {
  while (!text.empty()) {
    const size_t end = std::min(text.find(separator), text.size());
    use(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
}

/// "a*b+c, d" -> "a*b+c", "d".
std::vector<std::string_view> split_dimensions(std::string_view shape);

/// A product "a*b", "a/b" (nothing where it is not whole) or a single key or number.
std::optional<int64_t> evaluate_product(std::string_view product, const KeyValue& value_of);

/// One dimension; blocks count together.
std::optional<int64_t> evaluate(std::string_view dimension, const KeyValue& value_of);

/// Tensor::blocks of a row: blocks that have to be known and are not give nothing; heads that are
/// not known are left out.
std::optional<std::vector<CutBlock>> find_blocks(const TensorRow& row, const KeyValue& value_of);

}  // namespace refit
