#include "sim/search/problem.h"

#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/document.h"
#include "base/error.h"
#include "base/file.h"

namespace refit {
namespace {

constexpr const char* kOptions = "options";
constexpr int32_t kMostGrown = 64;  // times the nodes that the ranks alone need

const std::string& input_text(const Plan& plan, const std::string& name) {
  const std::string* text = find_input(plan, name);
  if (text == nullptr) fail("plan", "no input '" + name + "'", "a plan with its inputs");
  return *text;
}

Value parse_options(const Plan& plan) {
  return parse_document(input_text(plan, kOptions), "plan options", true);
}

/// What the train side has, once.
int64_t train_bytes(const Problem& problem) {
  int64_t bytes = 0;
  for (size_t t = 0; t < problem.casts.size(); ++t) {
    if (problem.casts[t].source >= 0) continue;
    bytes += dtype_bytes(problem.casts[t].train, problem.model.tensors[t].shape.product());
  }
  return bytes;
}

int32_t highest_gpu(const Plan& plan) {
  int32_t highest = -1;
  for (const PlanRank& rank : plan.ranks) highest = std::max(highest, rank.gpu);
  return highest;
}

/// Layouts (as load_layout reads them) and demand of a problem that has its model.
void load_sides(const std::string& train, const std::string& gen, Problem& problem) {
  problem.train = load_layout(train, problem.model, Side::kTrain, 0);
  const int32_t first_gen = problem.train.ranks.empty() ? 0 : problem.train.ranks.back() + 1;
  problem.gen = load_layout(gen, problem.model, Side::kGen, first_gen);
  problem.casts = apply_casts(problem.model, problem.train, problem.gen);
  problem.weight_bytes = train_bytes(problem);
  problem.demand = make_demand(problem.model, problem.train, problem.gen);
}

/// Makes the fabric, without what is excluded, and puts every rank on a GPU. Returns the nodes that
/// were made.
int32_t place_on_fabric(const InputSpec& spec, const FabricSource& source,
                        const FabricSource& place, Problem& problem) {
  const std::vector<int32_t>&train = problem.train.ranks, &gen = problem.gen.ranks;
  const NodeShape shape = node_shape(source);
  const int32_t wanted = spec.nodes > 0 ? spec.nodes : shape.fixed_nodes;
  const auto make = [&](int32_t nodes) {
    const Fabric whole = make_fabric(source, nodes);
    problem.fabric = spec.exclude.empty() ? whole : exclude(whole, spec.exclude);
    const PlacedRanks placed = place_ranks(problem.fabric, train, gen, place);
    problem.gpu_of_rank = placed.gpu;
    if (placed.nodes == 0) return 0;
    const std::string& last = problem.fabric.nodes[static_cast<size_t>(placed.nodes) - 1].name;
    const auto named = [&](const Node& node) { return node.name == last; };
    return static_cast<int32_t>(std::ranges::find_if(whole.nodes, named) - whole.nodes.begin()) + 1;
  };
  if (shape.listed || (wanted > 0 && (!spec.exclude.empty() || !place.text.empty()))) {
    make(wanted);
    return wanted;
  }
  const int32_t least = place_ranks(shape, train, gen).nodes;
  if (wanted > 0 && least > wanted) {
    fail(fmt::format("--fabric {}", spec.fabric),
         fmt::format("{} nodes of {} GPUs", wanted, shape.gpus_per_node),
         fmt::format("at least {} nodes for {} train and {} gen ranks", least, train.size(),
                     gen.size()));
  }
  if (spec.exclude.empty() && place.text.empty()) {
    const int32_t nodes = std::max(wanted, least);
    make(nodes);
    return nodes;
  }
  // What is excluded or named may lie further out: enough nodes first, then those that are used.
  for (int32_t nodes = least;; nodes *= 2) {
    try {
      const int32_t used = make(nodes);
      if (used < nodes) make(std::max(used, 1));
      return std::max(used, 1);
    } catch (const Error&) {
      if (nodes >= kMostGrown * least) throw;
    }
  }
}

}  // namespace

void load_demand(const InputSpec& spec, Problem& problem, std::vector<std::string>* notes) {
  problem.model = load_model(
      spec.model,
      {.dtype = spec.dtype, .mtp = spec.mtp, .unknown_replicate = spec.unknown_replicate});
  load_sides(spec.train, spec.gen, problem);
  if (notes == nullptr) return;
  for (const Layout* layout : {&problem.train, &problem.gen}) {
    for (const std::string& note : layout->notes) notes->push_back(layout->spec + ": " + note);
  }
}

Problem load_problem(const InputSpec& spec, std::vector<std::string>* notes) {
  Problem problem;
  load_demand(spec, problem, notes);
  const FabricSource fabric = load_fabric_source(spec.fabric);
  const FabricSource place = spec.place.empty()
                                 ? FabricSource{}
                                 : FabricSource{.text = read_file(spec.place), .name = spec.place};
  const int32_t nodes = place_on_fabric(spec, fabric, place, problem);
  const CostSource cost =
      load_cost_source(spec.cost.empty() ? problem.fabric.default_cost : spec.cost);
  problem.cost = parse_cost(cost);

  nlohmann::ordered_json options = {{"model_name", problem.model.name},
                                    {"fabric_name", problem.fabric.name},
                                    {"cost_name", problem.cost.name},
                                    {"nodes", nodes},
                                    {"dtype", spec.dtype},
                                    {"mtp", spec.mtp},
                                    {"unknown_replicate", spec.unknown_replicate}};
  // Only where they are given: a plan made without them stays the same file.
  if (!place.text.empty()) options["place"] = place.text;
  if (!spec.exclude.empty()) options["exclude"] = spec.exclude;
  problem.inputs = {
      {"model", resolve_model(spec.model)},
      {"train", resolve_layout(spec.train, Side::kTrain)},
      {"gen", resolve_layout(spec.gen, Side::kGen)},
      {"fabric", fabric.text},
      {"cost", cost.text},
      {kOptions, options.dump(1, ' ', true, nlohmann::json::error_handler_t::replace)}};
  return problem;
}

std::string model_name(const Plan& plan) { return parse_options(plan).at("model_name").as_text(); }

Problem reload_problem(const Plan& plan) {
  const Value options = parse_options(plan);
  Problem problem;
  problem.model = parse_model(input_text(plan, "model"), options.at("model_name").as_text(),
                              {.dtype = options.at("dtype").as_text(),
                               .mtp = options.at("mtp").as_bool(),
                               .unknown_replicate = options.at("unknown_replicate").as_bool()});
  load_sides(input_text(plan, "train"), input_text(plan, "gen"), problem);
  PlanWorld world = load_world(plan);
  problem.fabric = std::move(world.fabric);
  problem.cost = std::move(world.cost);
  for (const PlanRank& rank : plan.ranks) problem.gpu_of_rank.push_back(rank.gpu);
  problem.inputs = plan.inputs;
  return problem;
}

std::vector<PriceGroup> saved_binding(const Plan& plan) {
  const std::string* text = find_input(plan, kBoundInput);
  if (text == nullptr) return {};
  const PlanWorld world = load_world(plan);
  const LowerBound bound = parse_bound(*text, "the plan's bound", world.fabric);
  std::vector<uint8_t> sides(world.fabric.gpus.size(), 0);
  for (const PlanRank& rank : plan.ranks) {
    if (rank.gpu < 0 || static_cast<size_t>(rank.gpu) >= sides.size()) continue;
    uint8_t& side = sides[static_cast<size_t>(rank.gpu)];
    if (rank.train) side |= kTrainSide;
    if (rank.gen) side |= kGenSide;
  }
  return group_prices(bound.prices, world.fabric, link_rates(world.fabric, world.cost), sides);
}

PlanWorld load_world(const Plan& plan, const std::string& fabric, const std::string& cost) {
  const Value options = parse_options(plan);
  const auto kept_nodes = static_cast<int32_t>(options.at("nodes").as_int(1, 1 << 20));
  PlanWorld world;
  const FabricSource kept{input_text(plan, "fabric"), "the plan's fabric"};
  const FabricSource source = fabric.empty() ? kept : load_fabric_source(fabric);
  const NodeShape shape = node_shape(source);
  // On another fabric GPUs keep their numbers.
  const int32_t needed = highest_gpu(plan) / shape.gpus_per_node + 1;
  if (shape.fixed_nodes > 0 && shape.fixed_nodes < needed) {
    fail(source.name, fmt::format("{} nodes", shape.fixed_nodes),
         fmt::format("at least {} for the plan's GPUs", needed));
  }
  const int32_t nodes = shape.fixed_nodes > 0
                            ? shape.fixed_nodes
                            : std::max(needed, fabric.empty() ? kept_nodes : needed);
  world.fabric = make_fabric(source, nodes);
  std::vector<std::string> excluded;
  if (const Value* names = options.find("exclude"))
    for (size_t i = 0; i < names->size(); ++i) excluded.push_back((*names)[i].as_text());
  if (fabric.empty() && !excluded.empty()) world.fabric = exclude(world.fabric, excluded);
  // Another fabric brings its own cost model, unless the user names one.
  const CostSource kept_cost{input_text(plan, "cost"), "the plan's cost model"};
  world.cost = parse_cost(!cost.empty()     ? load_cost_source(cost)
                          : !fabric.empty() ? load_cost_source(world.fabric.default_cost)
                                            : kept_cost);
  return world;
}

}  // namespace refit
