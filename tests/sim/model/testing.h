#pragma once

#include <map>
#include <string>

#include "sim/model/model.h"
#include "tests/refused.h"

namespace refit {

inline std::map<std::string, Tensor> by_name(const Model& model) {
  std::map<std::string, Tensor> tensors;
  for (const Tensor& tensor : model.tensors) tensors.emplace(tensor.name, tensor);
  return tensors;
}

}  // namespace refit
