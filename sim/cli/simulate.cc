// refit simulate: replays a saved plan on a fabric.

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <charconv>
#include <future>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/units.h"
#include "plans/check.h"
#include "sim/cli/print.h"
#include "sim/cli/simulation.h"
#include "sim/simulator/replay.h"
#include "sim/simulator/tables.h"
#include "sim/simulator/trace.h"
#include "sim/simulator/whatif.h"

namespace refit::cli {
namespace {

using Json = nlohmann::ordered_json;

/// "0.1%" is 0.001.
double parse_error(const std::string& text) {
  double percent = 0;
  const char* last = text.data() + text.size();
  const auto [end, code] = std::from_chars(text.data(), last, percent);
  if (code != std::errc() || std::string_view(end, last) != "%" ||
      !(percent >= 0 && percent < 100)) {
    fail("--error", quote(text), "0% or more, below 100%");
  }
  return percent / 100;
}

std::string bottleneck_name(const Fabric& fabric, const Timeline& timeline) {
  return timeline.bottleneck < 0 ? "" : fabric.links[static_cast<size_t>(timeline.bottleneck)].name;
}

void expect_right(const LoadedPlan& loaded, const std::string& path) {
  const std::vector<Fault> faults = check(loaded, 1);
  if (!faults.empty()) throw Error(path + ": " + print_fault(faults.front()), ErrorKind::kWork);
}

}  // namespace

LoadedPlan load_checked(const std::string& path) {
  LoadedPlan loaded = load_plan(path);
  expect_right(loaded, path);
  return loaded;
}

Simulation load_simulation(const SimulatePlanOptions& options) {
  return prepare_simulation(load_checked(options.plan), options);
}

Simulation prepare_simulation(LoadedPlan loaded, const SimulatePlanOptions& options) {
  Simulation simulation{std::move(loaded), {}, {}};
  simulation.world = load_world(simulation.loaded.plan, options.fabric, options.cost);
  for (const std::string& change : options.sets) change_fabric(simulation.world.fabric, change);
  if (!options.error.empty()) simulation.how.error = parse_error(options.error);
  for (const std::string& text : options.stragglers)
    simulation.how.stragglers.push_back(parse_straggler(text));
  return simulation;
}

std::string simulation_json(const SimulatePlanOptions& options, const Simulation& simulation,
                            const Timeline& timeline) {
  const auto& [loaded, world, how] = simulation;
  return Json{{"predicted_s", timeline.refit_s},
              {"saved_lower_bound_s", loaded.plan.prediction.lower_bound_s},
              {"saved_predicted_s", loaded.plan.prediction.predicted_s},
              {"fabric", world.fabric.name},
              {"cost", world.cost.name},
              {"error", how.error},
              {"set", options.sets},
              {"stragglers", options.stragglers},
              {"wire_s", timeline.wire_s},
              {"staging_s", timeline.staging_s},
              {"launch_s", timeline.launch_s},
              {"wait_s", timeline.wait_s},
              {"bottleneck", bottleneck_name(world.fabric, timeline)},
              {"bottleneck_use", timeline.bottleneck_use},
              {"events", timeline.events},
              {"digest", loaded.saved.digest}}
      .dump(2);
}

int run_simulate(const Common& common, const SimulatePlanOptions& options) {
  const Simulation simulation = during(
      common.quiet, "read", [&] { return prepare_simulation(load_plan(options.plan), options); });
  const auto& [loaded, world, how] = simulation;
  const Plan& plan = loaded.plan;
  const bool details =
      !options.timeline.empty() || !options.links.empty() || !options.ranks.empty();
  // Checked meanwhile: a plan that is wrong is replayed for nothing, whatever comes of it.
  const Replay replayed =
      during(common.quiet, "simulate", [&, &loaded = loaded, &world = world, &how = how] {
        std::future<Replay> replaying = std::async(std::launch::async, [&] {
          return replay(loaded.plan, world.fabric, world.cost, how, details);
        });
        expect_right(loaded, options.plan);
        return replaying.get();
      });
  const Timeline timeline = make_timeline(plan, replayed, world.cost);
  if (!options.trace.empty()) write_trace(plan, world.fabric, world.cost, replayed, options.trace);
  if (!options.timeline.empty())
    write_transfer_table(plan, world.fabric, replayed, options.timeline);
  if (!options.links.empty())
    write_link_table(world.fabric, replayed, timeline.refit_s, options.links);
  if (!options.ranks.empty())
    write_rank_table(plan, world.cost, replayed, timeline.refit_s, options.ranks);
  if (common.json) {
    fmt::print("{}\n", simulation_json(options, simulation, timeline));
    return 0;
  }
  fmt::print("refit time   {} on {}, cost model {}\n", print_time(timeline.refit_s),
             world.fabric.name, world.cost.name);
  std::vector<std::string> whatif = options.sets;
  for (const Straggler& slow : how.stragglers)
    whatif.push_back(fmt::format("rank {} at {:g} of its speed", slow.rank, slow.speed));
  if (!whatif.empty()) {
    fmt::print("what if      {}\n", fmt::join(whatif, ", "));
    const double planned = plan.prediction.predicted_s;
    fmt::print(
        "as planned   {}{}\n", print_time(planned),
        planned > 0 ? ", now " + print_ratio(timeline.refit_s / planned) + " times that" : "");
  }
  fmt::print("last rank    {} wire, {} staging, {} launch, {} waiting\n",
             print_time(timeline.wire_s), print_time(timeline.staging_s),
             print_time(timeline.launch_s), print_time(timeline.wait_s));
  if (timeline.bottleneck >= 0) {
    fmt::print("fullest link {}, in use {} of its capacity\n",
               bottleneck_name(world.fabric, timeline), print_percent(timeline.bottleneck_use));
  }
  if (!options.trace.empty())
    fmt::print("trace        {} (chrome://tracing or ui.perfetto.dev)\n", options.trace);
  return 0;
}

}  // namespace refit::cli
