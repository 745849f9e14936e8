#include "sim/cost/estimate.h"

#include <algorithm>
#include <vector>

namespace refit {

double estimate(const Plan& plan, const Fabric& fabric, const CostModel& cost) {
  const std::vector<double> rate = link_rates(fabric, cost);
  std::vector<double> seconds(fabric.links.size(), 0);  // by link
  double busiest = 0;
  for (size_t rank = 0; rank < plan.programs.size(); ++rank) {
    const Program& program = plan.programs[rank];
    std::vector<double> channel(plan.channels.size(), 0);
    for (const Step& step : program.steps) {
      double start = 0, out = 0, in = 0;
      for (int32_t m = step.first_send; m < step.last_message; ++m) {
        const Message& message = program.messages[static_cast<size_t>(m)];
        if (message.peer == static_cast<int32_t>(rank)) continue;
        const bool send = m < step.first_recv;
        const int32_t here = plan.ranks[rank].gpu;
        const int32_t there = plan.ranks[static_cast<size_t>(message.peer)].gpu;
        const int32_t from = send ? here : there, to = send ? there : here;
        const int32_t ways = count_ways(fabric, from, to);
        const double part = static_cast<double>(message_bytes(program, message)) / ways;
        double slowest = 0;
        LinkKind kind = LinkKind::kNvlink;
        for (int32_t way = 0; way < ways; ++way) {
          for (const int32_t link : route(fabric, from, to, way)) {
            const auto l = static_cast<size_t>(link);
            slowest = std::max(slowest, part / rate[l]);
            kind = fabric.links[l].kind;
            if (send) seconds[l] += part / rate[l];
          }
        }
        const LinkCost& lane = link_cost(cost, kind);
        start = std::max(start, lane.step_start + lane.message_start);
        (send ? out : in) += slowest;
      }
      channel[static_cast<size_t>(step.channel)] += start + std::max(out, in);
    }
    for (const double s : channel) busiest = std::max(busiest, s);
  }
  for (const double s : seconds) busiest = std::max(busiest, s);
  return busiest;
}

}  // namespace refit
