#include "sim/cost/cost_model.h"

#include <fmt/core.h>

#include "base/document.h"
#include "base/error.h"
#include "base/file.h"

namespace refit {
namespace {

/// A rate, or "none" where nothing limits.
double read_limit(const Value& value) { return value.as_text() == "none" ? 0 : value.as_rate(); }

LinkCost read_link_cost(const Value& value) {
  LinkCost cost;
  const Value& efficiency = value.at("efficiency");
  cost.efficiency = efficiency.as_number();
  if (!(cost.efficiency > 0 && cost.efficiency <= 1))
    fail(efficiency.place(), efficiency.as_text(), "more than 0, at most 1");
  cost.flow_rate = read_limit(value.at("flow_rate"));
  cost.step_start = value.at("step_start").as_time();
  cost.message_start = value.at("message_start").as_time();
  value.finish();
  return cost;
}

}  // namespace

CostSource load_cost_source(const std::string& name_or_path) {
  const std::string path = find_data_file("topologies/cost", name_or_path);
  if (path.empty())
    fail("cost model", quote(name_or_path),
         fmt::format("a file or one of: {}", list_data_files("topologies/cost")));
  return {.text = read_file(path), .name = path};
}

CostModel parse_cost(const CostSource& source) {
  const Value file = parse_document(source.text, source.name, /*json=*/false);
  CostModel cost;
  const Value& name = file.at("name");
  cost.name = name.as_text();
  if (cost.name.empty()) fail(name.place(), "an empty text", "a name");
  cost.nvlink = read_link_cost(file.at("nvlink"));
  cost.net = read_link_cost(file.at("net"));
  cost.gpu_rate = read_limit(file.at("gpu_rate"));
  cost.memory_rate = read_limit(file.at("memory_rate"));
  cost.copy_start = file.at("copy_start").as_time();
  file.finish();
  return cost;
}

const LinkCost& link_cost(const CostModel& cost, LinkKind kind) {
  switch (kind) {
    case LinkKind::kNvlink:
      return cost.nvlink;
    case LinkKind::kNic:
    case LinkKind::kSpine:
      return cost.net;
  }
  check_failed("a kind of link", __FILE__, __LINE__);
}

std::vector<double> link_rates(const Fabric& fabric, const CostModel& cost) {
  std::vector<double> rates;
  rates.reserve(fabric.links.size());
  for (const Link& link : fabric.links)
    rates.push_back(link.rate * link_cost(cost, link.kind).efficiency);
  return rates;
}

}  // namespace refit
