#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/error.h"
#include "sim/layout/frameworks.h"
#include "sim/layout/spec.h"

namespace refit {
namespace {

/// Tensor parallelism over DTensors cuts rows without regard to heads; frameworks ask for sizes
/// that leave them whole.
void check_heads(const Tensor& tensor, int32_t tp, const std::string& place) {
  for (const CutBlock& block : tensor.blocks) {
    if (block.heads > 0 && block.heads % tp != 0) {
      fail(place, fmt::format("{} heads over tp={}", block.heads, tp),
           "a divisor of them: no framework cuts through a head");
    }
    if (tensor.blocks.size() > 1 && tp > 1) {
      fail(place, fmt::format("{} blocks over tp={}", tensor.blocks.size(), tp),
           "tp=1: no tensor-parallel plan of PyTorch cuts each on its own");
    }
  }
  const bool expert = tensor.role == Role::kExpertColumn || tensor.role == Role::kExpertRow;
  if (expert && tp > 1) {
    fail(place, fmt::format("experts over tp={}", tp), "tp=1, or a layout file that says how");
  }
}

}  // namespace

Layout fsdp_layout(const Model& model, const FsdpSizes& sizes, const std::vector<int32_t>& ranks,
                   const std::string& place) {
  Layout layout;
  layout.ranks = ranks;
  std::sort(layout.ranks.begin(), layout.ranks.end());
  // The axes in the order in which they cut: tp before fsdp, though tp is the fastest.
  Mesh mesh{{"replica", "tp", "fsdp"}, {sizes.replicas, sizes.tp, sizes.shards}, {}};
  for (int32_t replica = 0; replica < sizes.replicas; ++replica) {
    for (int32_t tp = 0; tp < sizes.tp; ++tp) {
      for (int32_t shard = 0; shard < sizes.shards; ++shard) {
        mesh.ranks.push_back(
            ranks[static_cast<size_t>((replica * sizes.shards + shard) * sizes.tp + tp)]);
      }
    }
  }
  MapTable table;
  for (const Tensor& tensor : model.tensors) {
    const std::string tensor_place = fmt::format("{}, tensor {}", place, tensor.name);
    check_heads(tensor, sizes.tp, tensor_place);
    const int32_t tp_dim = tp_dimension(tensor.role);
    std::array<Placement, 3> placements{Placement{-1}, Placement{-1}, Placement{0}};
    if (sizes.tp > 1 && tp_dim < tensor.shape.count) placements[1].dim = tp_dim;
    layout.tensor_map.push_back(
        table.map_of(tensor.shape, mesh, placements, Split::kChunk, tensor_place));
  }
  layout.maps = table.take();
  return layout;
}

Layout load_fsdp(const std::string& text, const Model& model, int32_t first_rank) {
  constexpr std::array<std::string_view, 4> kKeys{"world", "replicas", "tp", "ranks"};
  const Spec spec(text, kKeys);
  const std::optional<int32_t> world = spec.size("world");
  if (!world) fail(spec.place(), "no key world", "world=N");
  FsdpSizes sizes;
  sizes.replicas = spec.size("replicas", 1);
  sizes.tp = spec.size("tp", 1);
  const int64_t group = int64_t{sizes.replicas} * sizes.tp;
  if (*world % group != 0) {
    fail(spec.place("world"), fmt::format("{}", *world),
         fmt::format("a multiple of replicas * tp = {} * {}", sizes.replicas, sizes.tp));
  }
  sizes.shards = static_cast<int32_t>(*world / group);
  return fsdp_layout(model, sizes, grid_ranks(spec, *world, first_rank), spec.place());
}

}  // namespace refit
