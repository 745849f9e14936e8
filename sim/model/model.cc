#include "sim/model/model.h"

#include <fmt/core.h>

#include <algorithm>
#include <cctype>
#include <filesystem>

#include "base/document.h"
#include "base/error.h"
#include "base/file.h"
#include "sim/model/readers.h"
#include "sim/model/recipe.h"

namespace refit {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kBlank =
    " \t\r\n\xEF\xBB\xBF";  // and the mark with which some editors begin UTF-8
constexpr std::string_view kIndexSuffix = ".safetensors.index.json";

/// Where the text of a model comes from.
struct Source {
  std::string path;
  enum class Kind { kText, kSafetensors, kIndex } kind = Kind::kText;
  std::string index = {};  // of safetensors beside a config.json, whose names have to agree
};

/// The named model that a recipe's `policy.model_name` ("Qwen/Qwen3-4B-Base") means: variants of
/// one network have the same tensors.
std::string find_recipe_model(const Recipe& recipe) {
  constexpr std::string_view kName = "policy.model_name", kOverrides = "policy.hf_config_overrides";
  if (!recipe.is_empty(kOverrides)) {
    fail(recipe.place(kOverrides), "another model than model_name says", "none");
  }
  const std::string full = recipe.text(kName, "");
  std::string name = full.substr(full.rfind('/') + 1);
  std::transform(name.begin(), name.end(), name.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  for (const std::string_view suffix : {"", "-base", "-instruct"}) {
    if (!name.ends_with(suffix)) continue;
    const std::string path = find_data_file("models", name.substr(0, name.size() - suffix.size()));
    if (path.ends_with(".yaml")) return path;
  }
  fail(recipe.place(kName), quote(full),
       "one of " + list_data_files("models") + "; else --model config.json");
}

Source find_source(const std::string& name_or_path) {
  using Kind = Source::Kind;
  std::error_code code;
  if (fs::is_regular_file(name_or_path, code)) {
    if (const auto recipe = Recipe::load(name_or_path)) {
      return {find_recipe_model(*recipe), Kind::kText};
    }
  }
  if (const fs::path config = fs::path(name_or_path) / "config.json";
      !name_or_path.empty() && fs::exists(config, code)) {  // a checkpoint's folder
    return {config.string(), Kind::kText};
  }
  const std::string path = find_data_file("models", name_or_path);
  if (path.empty()) {
    fail("--model", quote(name_or_path),
         "a file, a checkpoint's folder or one of: " + list_data_files("models"));
  }
  if (path.ends_with(".safetensors")) return {path, Kind::kSafetensors};
  if (!path.ends_with(kIndexSuffix)) return {path, Kind::kText};
  // An index has names and no shapes: they are in the config.json beside it, else in the headers of
  // its files.
  const fs::path config = fs::path(path).parent_path() / "config.json";
  if (fs::exists(config, code)) return {config.string(), Kind::kText, path};
  return {path, Kind::kIndex};
}

std::string read_source(const Source& source) {
  switch (source.kind) {
    case Source::Kind::kText:
      return read_file(source.path);
    case Source::Kind::kSafetensors:
      return list_safetensors(source.path);
    case Source::Kind::kIndex:
      return list_indexed_safetensors(source.path);
  }
  return "";
}

/// "models/qwen3-4b.yaml" -> "qwen3-4b"; "Qwen3-4B/config.json" -> "Qwen3-4B".
std::string model_name(const std::string& place) {
  const fs::path path(place);
  std::string name = path.filename().string();
  const std::string folder = path.parent_path().filename().string();
  if (!folder.empty() && (name == "config.json" || name.starts_with("model.safetensors"))) {
    return folder;
  }
  for (const std::string_view suffix : std::initializer_list<std::string_view>{
           ".model.json", kIndexSuffix, ".json", ".yaml", ".safetensors"}) {
    if (name.size() > suffix.size() && name.ends_with(suffix)) {
      name.resize(name.size() - suffix.size());
      break;
    }
  }
  return name;
}

}  // namespace

int32_t tp_dimension(Role role) {
  switch (role) {
    case Role::kReplicated:
    case Role::kMtpColumn:
    case Role::kMtpFcColumn:
      return -1;
    case Role::kVocab:
    case Role::kColumn:
    case Role::kKvColumn:
      return 0;
    case Role::kRow:
    case Role::kExpertColumn:
      return 1;
    case Role::kExpertRow:
      return 2;
  }
  REFIT_CHECK(false);
  return -1;
}

int64_t tensor_bytes(const Tensor& tensor) {
  return dtype_bytes(tensor.dtype, tensor.shape.product());
}

int64_t model_bytes(const Model& model) {
  int64_t bytes = 0;
  for (const Tensor& tensor : model.tensors) bytes += tensor_bytes(tensor);
  return bytes;
}

void check_tensor(const Tensor& tensor, const std::string& place) {
  int64_t elements = 1;
  for (int dim = 0; dim < tensor.shape.count; ++dim) {
    if (tensor.shape[dim] > kMaxElements / elements) {
      fail(place, fmt::format("{} of more than 2^40 elements", tensor.name), "fewer");
    }
    elements *= tensor.shape[dim];
  }
  const int64_t last = tensor.shape.count > 0 ? tensor.shape[tensor.shape.count - 1] : 1;
  if (dtype_bits(tensor.dtype) < 8 && last % 2 != 0) {
    fail(place,
         fmt::format("{} of {} with rows of {}", tensor.name, dtype_name(tensor.dtype), last),
         "an even number");
  }
}

std::string resolve_model(const std::string& name_or_path) {
  return read_source(find_source(name_or_path));
}

Model load_model(const std::string& name_or_path, const ModelOptions& options) {
  const Source source = find_source(name_or_path);
  const std::string text = read_source(source);
  Model model = parse_model(text, source.path, options);
  if (!source.index.empty()) {
    ModelOptions with_mtp = options;
    with_mtp.mtp = true;
    check_index(load_document(source.index), parse_model(text, source.path, with_mtp));
  }
  return model;
}

Model parse_model(const std::string& text, const std::string& place, const ModelOptions& options) {
  const size_t start = text.find_first_not_of(kBlank);
  const bool json = start != std::string::npos && text[start] == '{';
  const Value root = parse_document(text, place, json);
  if (root.kind() != Value::Kind::kMap) fail(root.place(), "no map", "a model");
  Model model;
  if (!json) {
    model = read_config(root, true, options);
  } else if (root.find("weight_map") != nullptr) {
    fail(root.place(), "a safetensors index, which has no shapes",
         "the config.json of that checkpoint");
  } else if (root.find("model_type") != nullptr || root.find("text_config") != nullptr) {
    model = read_config(root, false, options);
  } else if (root.find("default_tensors") != nullptr) {
    model = read_m2n_layers(root, options);
  } else if (root.find("per_layer_params") != nullptr) {
    model = read_tensor_list(parse_document(list_refit_info(root), place, true), options);
  } else {
    model = read_tensor_list(root, options);
  }
  model.name = model_name(place);
  return model;
}

}  // namespace refit
