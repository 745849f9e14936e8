// refit calibrate: from measured times to a cost model.

#include "sim/cost/calibrate.h"

#include <fmt/core.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/units.h"
#include "plans/plan_io.h"
#include "sim/cli/commands.h"
#include "sim/cli/print.h"
#include "sim/search/problem.h"

namespace refit::cli {
namespace {

using Json = nlohmann::ordered_json;

std::vector<Sample> read_samples(const CalibrateOptions& options, const FabricSource& fabric,
                                 std::vector<std::string>& skipped) {
  std::vector<Sample> samples;
  const auto add = [&](const std::vector<Sample>& more) {
    samples.insert(samples.end(), more.begin(), more.end());
  };
  for (size_t i = 0; i < options.logs.size(); ++i) {
    const std::string& path = options.logs[i];
    const std::string text = read_file(path);
    if (!path.ends_with(".json")) {
      add(log_samples(parse_nccl_log(text, path), static_cast<int32_t>(i), fabric, &skipped));
      continue;
    }
    if (options.plan.empty())
      fail(path, "no --plan", "the plan that refit-exec ran, for what its steps move");
    const Plan plan = load_plan(options.plan).plan;
    add(exec_samples(text, path, plan, load_world(plan, options.fabric).fabric));
  }
  return samples;
}

void print_qualities(const char* what, const std::vector<FitQuality>& qualities) {
  std::vector<std::vector<std::string>> table;
  for (const FitQuality& quality : qualities) {
    table.push_back({quality.name, fmt::format("{}", quality.points),
                     fmt::format("{}", quality.outliers), print_percent(quality.rms),
                     fmt::format("{:+.1f} %", 100 * quality.worst)});
  }
  print_table({what, "points", "outliers", "rms residual", "worst"}, table);
}

Json qualities_json(const std::vector<FitQuality>& qualities) {
  Json list = Json::array();
  for (const FitQuality& quality : qualities) {
    list.push_back({{"name", quality.name},
                    {"points", quality.points},
                    {"outliers", quality.outliers},
                    {"rms", quality.rms},
                    {"worst", quality.worst}});
  }
  return list;
}

Json link_json(const LinkCost& link, bool rate_fitted, bool start_fitted) {
  return {{"efficiency", link.efficiency},
          {"efficiency_fitted", rate_fitted},
          {"start_s", link.step_start + link.message_start},
          {"start_fitted", start_fitted}};
}

void print_link(const char* name, const LinkCost& link, bool rate_fitted, bool start_fitted) {
  fmt::print("{:<9} {} of the nominal rate ({}), start-up {} without the path's latency ({})\n",
             name, print_percent(link.efficiency), rate_fitted ? "fitted" : "kept",
             print_time(link.step_start + link.message_start), start_fitted ? "fitted" : "kept");
}

}  // namespace

int run_calibrate(const Common& common, const CalibrateOptions& options) {
  const FabricSource fabric = load_fabric_source(options.fabric);
  const std::string base_name =
      options.base.empty()
          ? make_fabric(fabric, std::max(1, node_shape(fabric).fixed_nodes)).default_cost
          : options.base;
  const CostModel base = parse_cost(load_cost_source(base_name));
  std::vector<std::string> skipped;
  const std::vector<Sample> samples = read_samples(options, fabric, skipped);
  const Calibration result = calibrate(samples, base, options.name);
  write_file(options.output, print_calibration(result, base));
  log_notes(common.quiet, skipped);
  if (common.json) {
    Json outliers = Json::array();
    for (const Outlier& outlier : result.outliers) {
      outliers.push_back({{"place", outlier.sample.place},
                          {"what", outlier.sample.what},
                          {"measured_s", outlier.sample.seconds},
                          {"fitted_s", outlier.fitted}});
    }
    fmt::print(
        "{}\n",
        Json{{"name", result.cost.name},
             {"base", base.name},
             {"output", options.output},
             {"nvlink", link_json(result.cost.nvlink, result.nvlink_rate, result.nvlink_start)},
             {"net", link_json(result.cost.net, result.net_rate, result.net_start)},
             {"classes", qualities_json(result.classes)},
             {"files", qualities_json(result.files)},
             {"outliers", outliers},
             {"skipped", skipped}}
            .dump(2));
    return 0;
  }
  print_link("nvlink", result.cost.nvlink, result.nvlink_rate, result.nvlink_start);
  print_link("net", result.cost.net, result.net_rate, result.net_start);
  fmt::print("rest      kept from {}\n\n", base.name);
  print_qualities("class", result.classes);
  fmt::print("\n");
  print_qualities("file", result.files);
  if (!result.outliers.empty()) {
    std::vector<std::vector<std::string>> table;
    for (const Outlier& outlier : result.outliers) {
      table.push_back({outlier.sample.place, outlier.sample.what,
                       print_time(outlier.sample.seconds), print_time(outlier.fitted)});
    }
    fmt::print("\n");
    print_table({"outlier", "what", "measured", "fitted"}, table);
  }
  fmt::print("\nwritten   {}  (--cost {})\n", options.output, options.output);
  return 0;
}

}  // namespace refit::cli
