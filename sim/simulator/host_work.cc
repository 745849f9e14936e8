#include "sim/simulator/host_work.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "base/document.h"
#include "sim/simulator/replay.h"

namespace refit {
namespace {

constexpr const char* kInput = "host_work";

}  // namespace

void add_host_input(Plan& plan, std::vector<HostWork> work) {
  if (work.empty()) return;
  std::sort(work.begin(), work.end(), [](const HostWork& a, const HostWork& b) {
    return std::pair(a.channel, a.step) < std::pair(b.channel, b.step);
  });
  nlohmann::json rows = nlohmann::json::array();
  for (const HostWork& w : work) rows.push_back({w.channel, w.step, w.parameters, w.calls});
  plan.inputs.emplace_back(kInput, rows.dump());
}

std::vector<HostWork> read_host_input(const Plan& plan) {
  std::vector<HostWork> work;
  const std::string* text = find_input(plan, kInput);
  if (text == nullptr) return work;
  const Value rows = parse_document(*text, "plan host_work", true);
  for (size_t i = 0; i < rows.size(); ++i) {
    const Value& row = rows[i];
    work.push_back({static_cast<int32_t>(row[0].as_int(0, kMaxChannels - 1)),
                    static_cast<int32_t>(row[1].as_int(0, INT32_MAX)), row[2].as_number(),
                    row[3].as_number()});
  }
  return work;
}

void add_host_work(const Plan& plan, const CostModel& cost, StepGraph& graph) {
  std::map<std::pair<int32_t, int32_t>, double> seconds;  // by channel and step
  for (const HostWork& w : read_host_input(plan)) {
    seconds[{w.channel, w.step}] += w.parameters * cost.host.parameter + w.calls * cost.host.call;
  }
  if (seconds.empty()) return;
  for (StepNode& node : graph.nodes) {
    const Step& step = step_of(plan, node);
    const auto it = seconds.find({step.channel, step.id});
    if (it != seconds.end()) node.start_up += it->second;
  }
}

}  // namespace refit
