#include "sim/cli/results.h"

#include <nlohmann/json.hpp>

#include "sim/cli/print.h"

namespace refit::cli {
namespace {

using Json = nlohmann::ordered_json;

/// What a plan and a row of a comparison have in common.
Json row_json(const std::string& strategy, const Prediction& prediction, const PlanTotals& totals) {
  const std::optional<double> ratio = ratio_to_bound(prediction);
  return {{"strategy", strategy},
          {"predicted_s", prediction.predicted_s},
          {"lower_bound_s", prediction.lower_bound_s},
          {"gap", ratio ? Json(*ratio - 1) : Json()},
          {"estimated_s", prediction.estimated_s},
          {"transfers", totals.transfers},
          {"bytes_total", totals.bytes_total},
          {"bytes_inter_domain", totals.bytes_inter_domain},
          {"bytes_intra_domain", totals.bytes_intra_domain},
          {"peak_staging_bytes", totals.peak_staging_bytes},
          {"max_peers", totals.max_peers}};
}

Json plan_row(const Plan& plan, const SavedPlan& saved) {
  Json json = row_json(plan.strategy, plan.prediction, plan_totals(plan));
  json["bound_reason"] = plan.prediction.bound_reason;
  json["ranks"] = count_ranks(plan);
  json["tensors"] = plan.tensors.size();
  json["plan_bytes"] = saved.bytes;
  json["digest"] = saved.digest;
  return json;
}

}  // namespace

std::optional<double> ratio_to_bound(const Prediction& prediction) {
  if (prediction.lower_bound_s <= 0) return std::nullopt;
  return prediction.predicted_s / prediction.lower_bound_s;
}

std::string plan_json(const Problem& problem, const Plan& plan, const SavedPlan& saved,
                      double search_s) {
  Json json = plan_row(plan, saved);
  json["classes"] = problem.demand.classes.size();
  json["model_bytes"] = problem.weight_bytes;
  json["demand_bytes"] = problem.demand.bytes;
  json["search_s"] = search_s;
  json["peak_memory_bytes"] = peak_memory();
  return json.dump(2);
}

std::string saved_plan_json(const Plan& plan, const SavedPlan& saved) {
  return plan_row(plan, saved).dump(2);
}

std::string compare_json(const Comparison& comparison) {
  Json list = Json::array();
  for (const ComparedPlan& row : comparison.rows) {
    if (!row.error.empty()) {
      list.push_back({{"strategy", row.strategy}, {"error", row.error}});
      continue;
    }
    Json json = row_json(row.strategy, row.prediction, row.totals);
    json["schedule_s"] = row.schedule_s;
    list.push_back(std::move(json));
  }
  return Json{{"lower_bound_s", comparison.bound.seconds},
              {"bound_reason", comparison.bound.reason},
              {"rows", list}}
      .dump(2);
}

std::string binding_json(const std::vector<PriceGroup>& binding) {
  Json list = Json::array();
  for (const PriceGroup& group : binding)
    list.push_back({{"what", group.name}, {"share", group.share}, {"links", group.links}});
  return list.dump();
}

std::string bound_json(const LowerBound& bound) {
  return Json{{"lower_bound_s", bound.seconds},
              {"bound_reason", bound.reason},
              {"cut_s", bound.cut.seconds()},
              {"fluid_s", bound.fluid_s},
              {"bytes", bound.cut.bytes},
              {"capacity_bytes_per_s", bound.cut.capacity},
              {"binding", Json::parse(binding_json(bound.binding))}}
      .dump(2);
}

}  // namespace refit::cli
