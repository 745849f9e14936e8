#pragma once

#include <map>
#include <string>

#include "base/error.h"
#include "sim/model/model.h"

namespace refit {

/// The message that `action` throws.
template <typename Action>
std::string error_of(Action action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

inline std::map<std::string, Tensor> by_name(const Model& model) {
  std::map<std::string, Tensor> tensors;
  for (const Tensor& tensor : model.tensors) tensors.emplace(tensor.name, tensor);
  return tensors;
}

}  // namespace refit
