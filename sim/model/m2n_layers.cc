#include <fmt/format.h>

#include "base/error.h"
#include "sim/model/readers.h"

namespace refit {
namespace {

constexpr int64_t kMostLayers = 10000;

/// What the two cut dimensions say of a tensor with so many dimensions.
Role role_of(int64_t dims, int64_t tp_dim, int64_t ep_dim, const Value& tensor) {
  if (ep_dim < 0) {
    if (tp_dim < 0) return Role::kReplicated;
    if (tp_dim == 0) return Role::kColumn;
    if (tp_dim == 1) return Role::kRow;
  } else if (ep_dim == 0 && dims == 3) {
    if (tp_dim == 1) return Role::kExpertColumn;
    if (tp_dim == 2) return Role::kExpertRow;
  }
  fail(tensor.place(),
       fmt::format("tp_shard_dim {}, ep_shard_dim {} of {} dimensions", tp_dim, ep_dim, dims),
       "ep_shard_dim 0 with tp_shard_dim 1 or 2 of 3 dimensions, or tp_shard_dim 0 or 1 alone");
}

}  // namespace

Model read_m2n_layers(const Value& root, const ModelOptions& options) {
  Model model;
  model.family = "nccl_m2n";
  model.layers = static_cast<int32_t>(root.at("num_layers").as_int(1, kMostLayers));
  const Dtype dtype = options.dtype.empty() ? Dtype::kBf16 : parse_dtype(options.dtype, "--dtype");
  const Value& tensors = root.at("default_tensors");
  for (int32_t layer = 0; layer < model.layers; ++layer) {
    for (size_t i = 0; i < tensors.size(); ++i) {
      const Value& entry = tensors[i];
      const Value& dims = entry.at("dims");
      std::vector<int64_t> extents;
      for (size_t d = 0; d < dims.size(); ++d) extents.push_back(dims[d].as_int(1, kMaxElements));
      if (extents.size() > static_cast<size_t>(kMaxDims)) {
        fail(dims.place(), fmt::format("{} dimensions", extents.size()),
             fmt::format("at most {}", kMaxDims));
      }
      const auto shard_dim = [&](std::string_view key) -> int64_t {
        const Value* dim = entry.find(key);
        return dim == nullptr || dim->is_null() ? -1 : dim->as_int(-1, std::ssize(extents) - 1);
      };
      Tensor tensor;
      tensor.name = fmt::format("layers.{}.{}", layer, entry.at("name").as_text());
      tensor.shape = Dims(extents);
      tensor.dtype = dtype;
      tensor.layer = layer;
      tensor.role =
          role_of(std::ssize(extents), shard_dim("tp_shard_dim"), shard_dim("ep_shard_dim"), entry);
      entry.finish();
      check_tensor(tensor, entry.place());
      tensor.ffn = tensor.role == Role::kExpertColumn || tensor.role == Role::kExpertRow;
      if (tensor.ffn) model.experts = static_cast<int32_t>(tensor.shape[0]);
      model.tensors.push_back(std::move(tensor));
    }
  }
  root.finish();
  if (model.tensors.empty()) fail(tensors.place(), "no tensors", "at least one");
  return model;
}

}  // namespace refit
