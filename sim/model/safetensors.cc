#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>
#include <vector>

#include "base/error.h"
#include "sim/model/readers.h"

namespace refit {
namespace {

/// A tensor's bytes in the data of its file.
struct Extent {
  int64_t begin = 0, end = 0;
  std::string name, place;
};

/// The tensor's extent, which has to be as long as its shape and dtype say.
Extent read_extent(const std::string& name, const Value& tensor, const Dims& shape) {
  const Value& offsets = tensor.at("data_offsets");
  if (offsets.size() != 2) {
    fail(offsets.place(), fmt::format("{} offsets", offsets.size()), "begin and end");
  }
  const Extent extent{offsets[0].as_int(0, INT64_MAX), offsets[1].as_int(0, INT64_MAX), name,
                      offsets.place()};
  const Dtype dtype = parse_dtype(tensor.at("dtype").as_text(), tensor.at("dtype").place());
  const int64_t bits = dtype_bits(dtype) * shape.product();
  if (bits % 8 != 0 || extent.end - extent.begin != bits / 8) {
    fail(offsets.place(),
         fmt::format("{} bytes from {} to {}", extent.end - extent.begin, extent.begin, extent.end),
         fmt::format("{}, the size of {} elements of {}", bits / 8, shape.product(),
                     dtype_name(dtype)));
  }
  return extent;
}

/// Every byte of the data belongs to one tensor: the format allows neither overlaps nor gaps. A
/// file may also be a header alone, without data.
void check_extents(std::vector<Extent> extents, const std::string& path, int64_t data_bytes) {
  std::sort(extents.begin(), extents.end(), [](const Extent& a, const Extent& b) {
    return std::tie(a.begin, a.end) < std::tie(b.begin, b.end);
  });
  int64_t end = 0;
  std::string before = "the header";
  for (const Extent& extent : extents) {
    if (extent.begin != end) {
      fail(extent.place,
           fmt::format("{} from {}, which {} the end of {}", extent.name, extent.begin,
                       extent.begin < end ? "overlaps" : "leaves a gap after", before),
           fmt::format("{}", end));
    }
    end = extent.end;
    before = extent.name;
  }
  if (data_bytes != 0 && end != data_bytes) {
    fail(path, fmt::format("{} bytes of data", data_bytes),
         fmt::format("{}, the end of {}", end, before));
  }
}

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
  std::vector<Extent> extents;
  for (const auto& [name, value] : root.items()) {
    if (name == "__metadata__") continue;
    nlohmann::ordered_json shape = nlohmann::ordered_json::array();
    const Value& dims = value->at("shape");
    if (dims.size() > static_cast<size_t>(kMaxDims)) {
      fail(dims.place(), fmt::format("{} dimensions", dims.size()),
           fmt::format("at most {}", kMaxDims));
    }
    Dims extents_of_tensor;
    int64_t elements = 1;
    for (size_t i = 0; i < dims.size(); ++i) {
      const int64_t extent = dims[i].as_int(0, kMaxElements);
      if (extent > 0 && elements > kMaxElements / extent) {
        fail(dims.place(), name + " of more than 2^40 elements", "fewer");
      }
      elements *= std::max<int64_t>(extent, 1);
      extents_of_tensor[extents_of_tensor.count++] = extent;
      shape.push_back(extent);
    }
    if (list.contains(name)) fail(value->place(), "a tensor that another file has too", "it once");
    extents.push_back(read_extent(name, *value, extents_of_tensor));
    list[name] = {{"shape", std::move(shape)}, {"dtype", value->at("dtype").as_text()}};
  }
  file.seekg(0, std::ios::end);
  const auto size = static_cast<int64_t>(file.tellg());
  check_extents(std::move(extents), path, size - static_cast<int64_t>(length + sizeof prefix));
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

/// The name of a language model's tensor in a checkpoint of text and images; "" for one of the
/// vision tower.
std::string text_name(const std::string& name) {
  for (const std::string_view tower :
       {"model.visual.", "visual.", "vision_tower.", "mm_projector."}) {
    if (name.starts_with(tower)) return "";
  }
  constexpr std::string_view kText = "language_model.";
  const size_t at = name.find(kText);
  return at == std::string::npos ? name : name.substr(0, at) + name.substr(at + kText.size());
}

/// "3 (a, b, ...)".
std::string print_some(const std::vector<std::string>& names) {
  constexpr size_t kShown = 2;
  const size_t shown = std::min(names.size(), kShown);
  return fmt::format("{} ({}{})", names.size(),
                     fmt::join(names.begin(), names.begin() + static_cast<int64_t>(shown), ", "),
                     shown < names.size() ? ", ..." : "");
}

}  // namespace

void check_index(const Value& index, const Model& with_mtp) {
  constexpr std::string_view kExperts = ".experts.", kScale = "_scale_inv";
  std::set<std::string> expected, optional;  // optional: of multi-token prediction
  for (const Tensor& tensor : with_mtp.tensors) {
    auto& names = tensor.name.starts_with("model.layers.") && tensor.layer < 0 ? optional
                  : tensor.name.starts_with("mtp.")                            ? optional
                                                                               : expected;
    const size_t at = tensor.name.find(kExperts);
    // Experts that a checkpoint has in one tensor end in a name without ".weight".
    if (at == std::string::npos || !tensor.name.ends_with(".weight")) {
      names.insert(tensor.name);
      continue;
    }
    for (int64_t expert = 0; expert < tensor.shape[0]; ++expert) {
      std::string name = tensor.name;
      names.insert(name.insert(at + kExperts.size(), fmt::format("{}.", expert)));
    }
  }
  const Value& map = index.at("weight_map");
  std::vector<std::string> unexpected;
  for (const auto& [text, file] : map.items()) {
    std::string name = text_name(text);
    if (name.ends_with(kScale)) name.resize(name.size() - kScale.size());
    if (name.empty() || optional.contains(name)) continue;
    if (expected.erase(name) == 0 && !text.ends_with(kScale)) unexpected.push_back(text);
  }
  if (unexpected.empty() && expected.empty()) return;
  const std::vector<std::string> missing(expected.begin(), expected.end());
  fail(map.place(),
       fmt::format("{}{}{}", missing.empty() ? "" : "no " + print_some(missing),
                   missing.empty() || unexpected.empty() ? "" : "; ",
                   unexpected.empty() ? "" : "unexpected " + print_some(unexpected)),
       fmt::format("the tensors of a {} of {} layers, as its config.json says", with_mtp.family,
                   with_mtp.layers));
}

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
