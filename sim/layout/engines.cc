// Grids of inference engines. Both number the ranks of a side
//   ((engine * dp + dp index) * pp + pp index) * tp + tp index
// and cut dense tensors by tp; they differ in how they deal experts.

#include <fmt/format.h>

#include <array>
#include <functional>

#include "base/error.h"
#include "sim/layout/eplb.h"
#include "sim/layout/frameworks.h"
#include "sim/layout/spec.h"

namespace refit {
namespace {

constexpr int32_t kVocabPadding = 64;  // of vLLM and SGLang

/// Makes a stage's expert mesh of its dense one, whose axes are engine, dp and tp.
using ExpertMesh = std::function<Mesh(const Mesh& dense)>;

Layout engine_layout(const Spec& spec, const Model& model, int32_t first_rank, Framework framework,
                     Split expert_split, const ExpertMesh& expert_mesh) {
  const RankOrder order{
      {"tp", "pp", "dp", "engine"},
      {spec.size("tp", 1), spec.size("pp", 1), spec.size("dp", 1), spec.size("engines", 1)}};
  int64_t world = 1;
  for (const int32_t size : order.size) {
    world *= size;
    if (world > kMaxRanks) {
      fail(spec.place(), "a grid of more ranks",
           fmt::format("tp * pp * dp * engines of at most {}", kMaxRanks));
    }
  }
  const std::vector<int32_t> ranks = grid_ranks(spec, static_cast<int32_t>(world), first_rank);

  StageOptions options;
  options.pp = order.size[1];
  options.remainder = framework == Framework::kVllm ? Remainder::kBeforeLast : Remainder::kLast;
  if (const std::string* layers = spec.find("layers")) {
    options.layers = parse_layers(*layers, options.pp, spec.place("layers"));
  }
  Stages stages = deal_layers(model.layers, options, spec.place());
  Grid grid;
  grid.framework = framework;
  grid.fused = spec.is_on("fused");
  grid.vocab_multiple = spec.size("vocab", kVocabPadding);
  grid.stage_of_layer = std::move(stages.of_layer);
  grid.notes = std::move(stages.notes);
  grid.expert_split = expert_split;
  if (const std::string* eplb = spec.find("eplb")) {
    grid.expert_of_slot = load_slots(*eplb, model, spec.place("eplb"));
  }
  for (int32_t stage = 0; stage < options.pp; ++stage) {
    const Mesh dense = slice_mesh(order, "pp", stage, ranks);
    REFIT_CHECK(dense.axis.size() == 3);
    grid.stages.push_back({dense, expert_mesh(dense)});
  }
  return place_tensors(model, grid, ranks, spec.place());
}

constexpr std::array<std::string_view, 10> kKeys{"tp",     "dp",    "pp",   "ep",    "engines",
                                                 "layers", "ranks", "eplb", "vocab", "fused"};

}  // namespace

/// `ep=on` spreads experts over the dp x tp ranks of an engine, balanced (vLLM's linear placement).
/// `ep=off` cuts every expert by tp, and the dp ranks hold copies, as with independent engines.
/// vLLM's own `data_parallel_size` differs there: without expert parallelism it cuts every expert
/// by dp x tp (FusedMoEParallelConfig flattens tp over dp).
Layout load_vllm(const std::string& text, const Model& model, int32_t first_rank) {
  const Spec spec(text, kKeys);
  const bool spread = spec.is_on("ep");
  if (spec.find("eplb") != nullptr && !spread) {
    fail(spec.place("eplb"), "redundant experts without ep=on", "ep=on");
  }
  return engine_layout(spec, model, first_rank, Framework::kVllm,
                       spread ? Split::kBalanced : Split::kEven, [&](const Mesh& dense) {
                         Mesh mesh = dense;
                         if (spread) {
                           mesh.axis = {"engine", "ep"};
                           mesh.size = {dense.size[0], dense.size[1] * dense.size[2]};
                         } else {
                           mesh.axis[2] = "etp";
                         }
                         return mesh;
                       });
}

/// `ep` divides tp: tp rank t holds the experts of ep rank t / (tp / ep), each cut by tp / ep. `dp`
/// repeats the whole engine; attention that is data-parallel inside one (--enable-dp-attention) is
/// not modelled.
Layout load_sglang(const std::string& text, const Model& model, int32_t first_rank) {
  const Spec spec(text, kKeys);
  const int32_t tp = spec.size("tp", 1), ep = spec.size("ep", 1);
  if (tp % ep != 0) {
    fail(spec.place("ep"), fmt::format("{}", ep), fmt::format("a divisor of tp={}", tp));
  }
  return engine_layout(spec, model, first_rank, Framework::kSglang, Split::kEven,
                       [&](const Mesh& dense) {
                         Mesh mesh = dense;
                         mesh.axis = {"engine", "dp", "ep", "etp"};
                         mesh.size = {dense.size[0], dense.size[1], ep, tp / ep};
                         return mesh;
                       });
}

}  // namespace refit
