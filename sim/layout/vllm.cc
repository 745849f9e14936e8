#include <fmt/format.h>

#include <array>

#include "base/error.h"
#include "sim/layout/frameworks.h"
#include "sim/layout/spec.h"

namespace refit {
namespace {

/// Experts of one stage, whose ranks are engines x dp x tp, slowest first: spread over dp x tp of
/// each engine, or every one cut by tp.
Mesh expert_mesh(const Mesh& dense, bool spread) {
  Mesh mesh = dense;
  REFIT_CHECK(mesh.axis.size() == 3);
  if (spread) {
    mesh.axis = {"engine", "ep"};
    mesh.size = {dense.size[0], dense.size[1] * dense.size[2]};
  } else {
    mesh.axis[2] = "etp";
  }
  return mesh;
}

bool parse_switch(const Spec& spec, std::string_view key) {
  const std::string* value = spec.find(key);
  if (value == nullptr || *value == "off") return false;
  if (*value != "on") fail(spec.place(key), quote(*value), "on or off");
  return true;
}

}  // namespace

Layout load_vllm(const std::string& text, const Model& model, int32_t first_rank) {
  constexpr std::array<std::string_view, 7> kKeys{"tp",      "dp",     "pp",   "ep",
                                                  "engines", "layers", "ranks"};
  const Spec spec(text, kKeys);
  const std::string place = spec.place();
  const bool spread_experts = parse_switch(spec, "ep");

  // rank = ((engine * dp + dp index) * pp + pp index) * tp + tp index
  const RankOrder order{
      {"tp", "pp", "dp", "engine"},
      {spec.size("tp", 1), spec.size("pp", 1), spec.size("dp", 1), spec.size("engines", 1)}};
  int64_t world = 1;
  for (const int32_t size : order.size) {
    world *= size;
    if (world > kMaxRanks) {
      fail(place, "a grid of more ranks",
           fmt::format("tp * pp * dp * engines of at most {}", kMaxRanks));
    }
  }
  const std::vector<int32_t> ranks = grid_ranks(spec, static_cast<int32_t>(world), first_rank);

  StageOptions options;
  options.pp = order.size[1];
  if (const std::string* layers = spec.find("layers")) {
    options.layers = parse_layers(*layers, options.pp, spec.place("layers"));
  }
  Stages stages = deal_layers(model.layers, options, place);
  Grid grid;
  grid.stage_of_layer = std::move(stages.of_layer);
  grid.notes = std::move(stages.notes);
  grid.expert_split = spread_experts ? Split::kBalanced : Split::kEven;  // vLLM's linear placement
  for (int32_t stage = 0; stage < options.pp; ++stage) {
    const Mesh dense = slice_mesh(order, "pp", stage, ranks);
    grid.stages.push_back({dense, expert_mesh(dense, spread_experts)});
  }
  return place_tensors(model, grid, ranks, place);
}

}  // namespace refit
