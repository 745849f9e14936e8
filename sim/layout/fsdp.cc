#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/error.h"
#include "sim/layout/frameworks.h"
#include "sim/layout/spec.h"

namespace refit {

Layout fsdp_layout(const Model& model, int32_t replicas, int32_t shards,
                   const std::vector<int32_t>& ranks, const std::string& place) {
  Layout layout;
  layout.ranks = ranks;
  std::sort(layout.ranks.begin(), layout.ranks.end());
  const Mesh mesh{{"replica", "fsdp"}, {replicas, shards}, ranks};
  const std::array<Placement, 2> placements{Placement{-1}, Placement{0}};
  MapTable table;
  for (const Tensor& tensor : model.tensors) {
    layout.tensor_map.push_back(table.map_of(tensor.shape, mesh, placements, Split::kChunk,
                                             fmt::format("{}, tensor {}", place, tensor.name)));
  }
  layout.maps = table.take();
  return layout;
}

Layout load_fsdp(const std::string& text, const Model& model, int32_t first_rank) {
  constexpr std::array<std::string_view, 2> kKeys{"world", "ranks"};
  const Spec spec(text, kKeys);
  const std::optional<int32_t> world = spec.size("world");
  if (!world) fail(spec.place(), "no key world", "world=N");
  return fsdp_layout(model, 1, *world, grid_ranks(spec, *world, first_rank), spec.place());
}

}  // namespace refit
