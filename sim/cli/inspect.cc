// refit check, simulate, export: from a saved plan.

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <charconv>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/error.h"
#include "base/file.h"
#include "base/units.h"
#include "plans/check.h"
#include "plans/export.h"
#include "plans/plan_io.h"
#include "sim/cli/commands.h"
#include "sim/cli/print.h"
#include "sim/simulator/simulator.h"
#include "sim/simulator/whatif.h"

namespace refit::cli {
namespace {

using Json = nlohmann::ordered_json;

/// A plan that is about to be replayed or taken apart has to be right first.
LoadedPlan load_checked(const std::string& path) {
  LoadedPlan loaded = load_plan(path);
  const std::vector<Fault> faults = check(loaded.plan, 1);
  if (!faults.empty()) throw Error(path + ": " + print_fault(faults.front()), ErrorKind::kWork);
  return loaded;
}

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

}  // namespace

int run_check(const Common& common, const std::string& path) {
  const LoadedPlan loaded = load_plan(path);
  const std::vector<Fault> faults = check(loaded.plan);
  const PlanTotals totals = plan_totals(loaded.plan);
  if (common.json) {
    Json list = Json::array();
    for (const Fault& fault : faults) list.push_back(print_fault(fault));
    fmt::print("{}\n", Json{{"ok", faults.empty()},
                            {"digest", loaded.saved.digest},
                            {"transfers", totals.transfers},
                            {"faults", list}}
                           .dump(2));
  } else if (faults.empty()) {
    fmt::print(
        "{}: right: {} transfers and {} local copies on {} ranks write every element once; staging "
        "{} of {}\n",
        path, totals.transfers, totals.copies, loaded.plan.ranks.size(),
        print_bytes(static_cast<double>(totals.peak_staging_bytes)),
        print_bytes(static_cast<double>(loaded.plan.staging_bytes)));
  } else {
    for (const Fault& fault : faults) fmt::print("{}: {}\n", path, print_fault(fault));
  }
  return faults.empty() ? 0 : 1;
}

int run_simulate(const Common& common, const SimulatePlanOptions& options) {
  const LoadedPlan loaded = load_checked(options.plan);
  const Plan& plan = loaded.plan;
  PlanWorld world = load_world(plan, options.fabric, options.cost);
  for (const std::string& change : options.sets) change_fabric(world.fabric, change);
  SimulateOptions how{.entries = !options.trace.empty()};
  if (!options.error.empty()) how.error = parse_error(options.error);
  for (const std::string& text : options.stragglers)
    how.stragglers.push_back(parse_straggler(text));
  const Timeline timeline = simulate(plan, world.fabric, world.cost, how);
  if (!options.trace.empty()) write_trace(plan, timeline, options.trace);
  const std::string bottleneck =
      timeline.bottleneck < 0 ? ""
                              : world.fabric.links[static_cast<size_t>(timeline.bottleneck)].name;
  if (common.json) {
    fmt::print("{}\n", Json{{"predicted_s", timeline.refit_s},
                            {"saved_lower_bound_s", plan.prediction.lower_bound_s},
                            {"saved_predicted_s", plan.prediction.predicted_s},
                            {"fabric", world.fabric.name},
                            {"cost", world.cost.name},
                            {"error", how.error},
                            {"set", options.sets},
                            {"stragglers", options.stragglers},
                            {"wire_s", timeline.wire_s},
                            {"staging_s", timeline.staging_s},
                            {"launch_s", timeline.launch_s},
                            {"wait_s", timeline.wait_s},
                            {"bottleneck", bottleneck},
                            {"bottleneck_use", timeline.bottleneck_use},
                            {"events", timeline.events},
                            {"digest", loaded.saved.digest}}
                           .dump(2));
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
  if (!bottleneck.empty()) {
    fmt::print("fullest link {}, in use {} of its capacity\n", bottleneck,
               print_percent(timeline.bottleneck_use));
  }
  if (!options.trace.empty())
    fmt::print("trace        {} (chrome://tracing or ui.perfetto.dev)\n", options.trace);
  return 0;
}

int run_export(const Common&, const ExportOptions& options) {
  const LoadedPlan loaded = load_checked(options.plan);
  if (options.format == "trace") {
    if (options.output == "-") fail("--format trace", "-o -", "a file");
    const PlanWorld world = load_world(loaded.plan);
    write_trace(loaded.plan, simulate(loaded.plan, world.fabric, world.cost, {.entries = true}),
                options.output);
    return 0;
  }
  const auto write = [&](std::ostream& out) {
    if (options.format == "json") {
      export_json(loaded.plan, loaded.saved.digest, out);
    } else if (options.format == "yaml") {
      export_yaml(loaded.plan, loaded.saved.digest, out);
    } else {
      export_csv(loaded.plan, out);
    }
  };
  if (options.output == "-") {
    std::ostringstream text;
    write(text);
    fmt::print("{}", text.str());
    return 0;
  }
  write_stream(options.output, write);
  return 0;
}

}  // namespace refit::cli
