#include <nlohmann/json.hpp>

#include "base/error.h"
#include "sim/model/readers.h"

namespace refit {

std::string list_refit_info(const Value& root) {
  nlohmann::ordered_json list = nlohmann::ordered_json::object();
  const auto add = [&](const std::string& name, const Value& shape, const Value& dtype) {
    if (list.contains(name)) fail(shape.place(), "tensor " + name + " a second time", "it once");
    nlohmann::ordered_json dims = nlohmann::ordered_json::array();
    for (size_t i = 0; i < shape.size(); ++i) dims.push_back(shape[i].as_int(1, kMaxElements));
    list[name] = {{"shape", dims}, {"dtype", dtype.as_text()}};
  };
  for (const auto& [layer, params] : root.at("per_layer_params").items()) {
    for (size_t i = 0; i < params->size(); ++i) {
      const Value& param = (*params)[i];
      add(param.at("name").as_text(), param.at("global_shape"), param.at("dtype"));
    }
  }
  if (const Value* misc = root.find("misc_meta")) {
    for (const auto& [name, value] : misc->items()) {
      add(name, value->at("shape"), value->at("dtype"));
    }
  }
  return list.dump();
}

}  // namespace refit
