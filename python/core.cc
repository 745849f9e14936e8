// The binding under the Python package: plans as objects, results as JSON text that the package
// turns into dataclasses. The interpreter's lock is released while the planner works.

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <chrono>
#include <sstream>

#include "base/error.h"
#include "base/units.h"
#include "plans/check.h"
#include "plans/export.h"
#include "plans/plan_io.h"
#include "sim/cli/results.h"
#include "sim/cli/simulation.h"
#include "sim/search/problem.h"

namespace nb = nanobind;

namespace refit {
namespace {

/// A plan with the name that its file has or would have.
struct HeldPlan {
  Plan plan;
  SavedPlan saved;
  std::string summary;  // JSON; of a loaded plan what the file tells
};

SearchOptions search_options(const std::string& strategy, uint64_t seed, const std::string& staging,
                             int32_t max_peers, const std::string& deadline) {
  SearchOptions options{.strategy = strategy, .seed = seed};
  options.staging_bytes = parse_bytes(staging, "staging");
  if (max_peers < 0) fail("max_peers", std::to_string(max_peers), "at least 1, or None");
  options.max_peers = max_peers;
  set_deadline(options, deadline, "deadline");
  return options;
}

HeldPlan make_plan(const InputSpec& inputs, const std::string& strategy, uint64_t seed,
                   const std::string& staging, int32_t max_peers, const std::string& deadline) {
  const nb::gil_scoped_release release;
  const auto start = std::chrono::steady_clock::now();
  const Problem problem = load_problem(inputs);
  HeldPlan held;
  held.plan = search(problem, search_options(strategy, seed, staging, max_peers, deadline));
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  held.saved = measure_plan(held.plan);
  held.summary = cli::plan_json(problem, held.plan, held.saved, took.count());
  return held;
}

HeldPlan load_held(const std::string& path) {
  const nb::gil_scoped_release release;
  LoadedPlan loaded = load_plan(path);
  std::string summary = cli::saved_plan_json(loaded.plan, loaded.saved);
  return {std::move(loaded.plan), loaded.saved, std::move(summary)};
}

void save_held(const HeldPlan& held, const std::string& path) {
  const nb::gil_scoped_release release;
  save_plan(held.plan, path);
}

std::vector<std::string> faults(const HeldPlan& held) {
  const nb::gil_scoped_release release;
  std::vector<std::string> lines;
  for (const Fault& fault : check(held.plan)) lines.push_back(print_fault(fault));
  return lines;
}

std::string export_held(const HeldPlan& held, const std::string& format) {
  const nb::gil_scoped_release release;
  std::ostringstream text;
  if (format == "json") {
    export_json(held.plan, held.saved.digest, text);
  } else if (format == "yaml") {
    export_yaml(held.plan, held.saved.digest, text);
  } else if (format == "csv") {
    export_csv(held.plan, text);
  } else {
    fail("format", quote(format), "json, yaml or csv");
  }
  return text.str();
}

std::string simulate_held(const HeldPlan& held, const std::string& fabric, const std::string& cost,
                          const std::vector<std::string>& sets,
                          const std::vector<std::string>& stragglers) {
  const nb::gil_scoped_release release;
  cli::SimulatePlanOptions options;
  options.fabric = fabric;
  options.cost = cost;
  options.sets = sets;
  options.stragglers = stragglers;
  const cli::Simulation simulation = cli::prepare_simulation({held.plan, held.saved}, options);
  const Timeline timeline = simulate(simulation.loaded.plan, simulation.world.fabric,
                                     simulation.world.cost, simulation.how);
  return cli::simulation_json(options, simulation, timeline);
}

std::string compare_inputs(const InputSpec& inputs, std::vector<std::string> strategies,
                           uint64_t seed, const std::string& staging, int32_t max_peers,
                           const std::string& deadline) {
  const nb::gil_scoped_release release;
  const Problem problem = load_problem(inputs);
  if (strategies.empty()) {
    for (const auto& [name, summary] : list_strategies()) strategies.push_back(name);
  }
  return cli::compare_json(
      compare(problem, search_options("refit", seed, staging, max_peers, deadline), strategies));
}

std::string bound_inputs(const InputSpec& inputs) {
  const nb::gil_scoped_release release;
  return cli::bound_json(lower_bound(load_problem(inputs)));
}

}  // namespace
}  // namespace refit

NB_MODULE(_core, module) {
  using refit::HeldPlan;
  using refit::InputSpec;
  module.attr("__version__") = REFIT_VERSION;
  nb::register_exception_translator([](const std::exception_ptr& raised, void*) {
    try {
      std::rethrow_exception(raised);
    } catch (const refit::Error& error) {
      const nb::object package = nb::module_::import_("refit.errors");
      const char* name = error.kind() == refit::ErrorKind::kInput ? "InputError" : "WorkError";
      PyErr_SetString(package.attr(name).ptr(), error.what());
    }
  });
  nb::class_<InputSpec>(module, "Inputs")
      .def(nb::init<>())
      .def_rw("model", &InputSpec::model)
      .def_rw("train", &InputSpec::train)
      .def_rw("gen", &InputSpec::gen)
      .def_rw("fabric", &InputSpec::fabric)
      .def_rw("cost", &InputSpec::cost)
      .def_rw("dtype", &InputSpec::dtype)
      .def_rw("nodes", &InputSpec::nodes)
      .def_rw("place", &InputSpec::place)
      .def_rw("exclude", &InputSpec::exclude)
      .def_rw("mtp", &InputSpec::mtp)
      .def_rw("unknown_replicate", &InputSpec::unknown_replicate);
  nb::class_<HeldPlan>(module, "HeldPlan")
      .def_ro("summary", &HeldPlan::summary)
      .def("save", &refit::save_held)
      .def("check", &refit::faults)
      .def("export", &refit::export_held)
      .def("simulate", &refit::simulate_held);
  module.def("plan", &refit::make_plan);
  module.def("load", &refit::load_held);
  module.def("compare", &refit::compare_inputs);
  module.def("bound", &refit::bound_inputs);
}
