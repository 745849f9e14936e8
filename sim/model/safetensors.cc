#include <fmt/core.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "sim/model/readers.h"

namespace refit {
namespace {

/// Adds the tensors of one file to `list`. The format: the header's length as a little-endian
/// 64-bit number, the header as JSON {name: {"dtype", "shape", "data_offsets"}, "__metadata__":
/// ...}, then the data. https://github.com/huggingface/safetensors
void read_header(const std::string& path, nlohmann::ordered_json& list) {
  constexpr uint64_t kLongest = 100'000'000;  // the format's own limit
  std::ifstream file(path, std::ios::binary);
  if (!file) fail(path, "cannot be read");
  unsigned char prefix[8] = {};
  file.read(reinterpret_cast<char*>(prefix), sizeof prefix);
  uint64_t length = 0;
  for (int byte = 7; byte >= 0; --byte) length = length << 8 | prefix[byte];
  if (!file || length > kLongest) fail(path, "no header of at most 100 MB", "a safetensors file");
  std::string header(length, '\0');
  file.read(header.data(), static_cast<std::streamsize>(length));
  if (!file) fail(path, "fewer bytes than its header has", "a whole safetensors file");

  const Value root = parse_document(header, path, true);
  for (const auto& [name, value] : root.items()) {
    if (name == "__metadata__") continue;
    nlohmann::ordered_json shape = nlohmann::ordered_json::array();
    const Value& dims = value->at("shape");
    for (size_t i = 0; i < dims.size(); ++i) shape.push_back(dims[i].as_int(0, INT64_MAX));
    if (list.contains(name)) fail(value->place(), "a tensor that another file has too", "it once");
    list[name] = {{"shape", std::move(shape)}, {"dtype", value->at("dtype").as_text()}};
  }
}

/// One tensor a line.
std::string print_list(const nlohmann::ordered_json& list) {
  std::string text = "{";
  for (const auto& [name, value] : list.items()) {
    text += fmt::format("{}\n{}: {}", text.size() > 1 ? "," : "", nlohmann::json(name).dump(),
                        value.dump());
  }
  return text + "\n}\n";
}

}  // namespace

std::string list_safetensors(const std::string& path) {
  nlohmann::ordered_json list = nlohmann::ordered_json::object();
  read_header(path, list);
  return print_list(list);
}

std::string list_indexed_safetensors(const std::string& index_path) {
  const Value index = load_document(index_path);
  std::set<std::string> files;
  for (const auto& [name, value] : index.at("weight_map").items()) files.insert(value->as_text());
  nlohmann::ordered_json list = nlohmann::ordered_json::object();
  for (const std::string& file : files) {
    read_header((std::filesystem::path(index_path).parent_path() / file).string(), list);
  }
  return print_list(list);
}

}  // namespace refit
