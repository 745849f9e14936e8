#include "sim/simulator/simulator.h"

#include <algorithm>
#include <tuple>

#include "sim/simulator/replay.h"
#include "sim/simulator/usage.h"

namespace refit {
namespace {

std::vector<TimelineEntry> list_entries(const Plan& plan, const Replay& replay,
                                        const CostModel& cost) {
  std::vector<TimelineEntry> entries;
  for (size_t t = 0; t < replay.transfers.size(); ++t) {
    const Transfer& transfer = replay.graph.transfers[t];
    const Step& step = step_of(plan, replay.graph.nodes[static_cast<size_t>(transfer.sender)]);
    const double posted = std::max(replay.nodes[static_cast<size_t>(transfer.sender)].begin,
                                   replay.nodes[static_cast<size_t>(transfer.receiver)].begin);
    entries.push_back({transfer.from, transfer.to, step.channel, step.id, transfer.bytes, posted,
                       replay.transfers[t].start, replay.transfers[t].end});
  }
  for (size_t n = 0; n < replay.nodes.size(); ++n) {
    const StepNode& node = replay.graph.nodes[n];
    if (node.copies == 0) continue;
    const Step& step = step_of(plan, node);
    const NodeTimes& times = replay.nodes[n];
    entries.push_back({node.rank, node.rank, step.channel, step.id, node.copy_bytes, times.begin,
                       times.begin + cost.copy_start, times.copied});
  }
  std::sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) {
    return std::tie(a.start, a.from, a.to, a.channel, a.step) <
           std::tie(b.start, b.from, b.to, b.channel, b.step);
  });
  return entries;
}

}  // namespace

Timeline make_timeline(const Plan& plan, const Replay& replay, const CostModel& cost,
                       bool entries) {
  Timeline timeline;
  timeline.link_bytes = replay.link_bytes;
  timeline.link_busy_s = replay.link_busy_s;
  timeline.events = replay.events;
  timeline.rank_end.assign(plan.programs.size(), 0);
  for (size_t n = 0; n < replay.nodes.size(); ++n) {
    double& end = timeline.rank_end[static_cast<size_t>(replay.graph.nodes[n].rank)];
    end = std::max(end, replay.nodes[n].end);
  }
  const auto last = std::max_element(timeline.rank_end.begin(), timeline.rank_end.end());
  if (last == timeline.rank_end.end()) return timeline;
  timeline.refit_s = *last;

  double most = 0;
  for (size_t link = 0; link < timeline.link_bytes.size(); ++link) {
    const double seconds = timeline.link_bytes[link] / replay.graph.capacity[link];
    if (seconds <= most) continue;
    most = seconds;
    timeline.bottleneck = static_cast<int32_t>(link);
    timeline.bottleneck_use = seconds / timeline.refit_s;
  }

  const auto rank = static_cast<int32_t>(last - timeline.rank_end.begin());
  const TimeSplit split = rank_split(replay, cost, rank, timeline.refit_s);
  timeline.wire_s = split.wire_s;
  timeline.staging_s = split.staging_s;
  timeline.launch_s = split.launch_s;
  timeline.wait_s = split.wait_s;
  if (entries) timeline.entries = list_entries(plan, replay, cost);
  return timeline;
}

Timeline simulate(const Plan& plan, const Fabric& fabric, const CostModel& cost,
                  const SimulateOptions& options) {
  return make_timeline(plan, replay(plan, fabric, cost, options), cost, options.entries);
}

}  // namespace refit
