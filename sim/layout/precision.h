#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "sim/layout/layout.h"
#include "sim/model/model.h"

namespace refit {

// What layouts say of dtypes: inline `dtype=`, `quant=`, `skip=`, `scales=`, in files `quant:`,
// `scales:` and an entry's `dtype:` and `cast:` (docs/layouts.md).

struct PrecisionSpec {
  std::optional<Dtype> dtype;  // of the tensors in the model's main dtype
  Quantisation quantisation;
};

/// Takes these keys out of an inline layout, and leaves the others for its reader.
PrecisionSpec take_precision(std::string& spec);

/// Sets a layout's precision and quantisation. A skip pattern that names no tensor is refused.
void apply_precision(const PrecisionSpec& precision, const Model& model, const std::string& place,
                     Layout& layout);

/// Refuses a skip pattern that names no tensor.
void check_skip(const Quantisation& quantisation, const Model& model, const std::string& place);

/// "follow" or "whole".
bool parse_scales(std::string_view text, const std::string& place);

/// "anywhere", "on_send" or "on_receive".
CastAt parse_cast(std::string_view text, const std::string& place);

/// Is a tensor of the model among those that are quantised? Matrices of fp32, bf16 or fp16, but for
/// embeddings, heads, routers, norms and what `skip` names.
bool is_selected(const Tensor& tensor, const Quantisation& quantisation);

}  // namespace refit
