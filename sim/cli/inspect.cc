// refit check, export: from a saved plan.

#include <fmt/core.h>

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
#include "sim/cli/simulation.h"
#include "sim/simulator/trace.h"

namespace refit::cli {

using Json = nlohmann::ordered_json;

int run_check(const Common& common, const std::string& path) {
  const LoadedPlan loaded = load_plan(path);
  const std::vector<Fault> faults = during(common.quiet, "check", [&] { return check(loaded); });
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
    print_text(fmt::format(
        "{}: right: {} transfers and {} local copies on {} ranks write every element once; staging "
        "{} of {}\n",
        path, totals.transfers, totals.copies, loaded.plan.ranks.size(),
        print_bytes(static_cast<double>(totals.peak_staging_bytes)),
        print_bytes(static_cast<double>(loaded.plan.staging_bytes))));
  } else {
    for (const Fault& fault : faults) fmt::print("{}: {}\n", path, print_fault(fault));
  }
  return faults.empty() ? 0 : 1;
}

int run_export(const Common&, const ExportOptions& options) {
  const LoadedPlan loaded = load_checked(options.plan);
  if (options.format == "trace") {
    if (options.output == "-") fail("--format trace", "-o -", "a file");
    const PlanWorld world = load_world(loaded.plan);
    write_trace(loaded.plan, world.fabric, world.cost,
                replay(loaded.plan, world.fabric, world.cost), options.output);
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
