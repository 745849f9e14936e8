#include "sim/simulator/usage.h"

#include <algorithm>
#include <utility>

namespace refit {
namespace {

/// What occupied a rank, from the times of its steps.
void add_intervals(const Replay& replay, const CostModel& cost, int32_t node,
                   std::vector<Interval>& intervals) {
  const StepNode& step = replay.graph.nodes[static_cast<size_t>(node)];
  const NodeTimes& times = replay.nodes[static_cast<size_t>(node)];
  const auto job = [&](double begin, double end) {
    intervals.push_back({begin, begin + cost.copy_start, Activity::kLaunch});
    intervals.push_back({begin + cost.copy_start, end, Activity::kStaging});
  };
  intervals.push_back({times.begin, times.begin + step.start_up, Activity::kLaunch});
  if (step.pack_bytes > 0) job(times.begin, times.packed);
  if (step.copies > 0) job(times.begin, times.copied);
  if (step.unpack_bytes > 0) job(times.arrived, times.unpacked);
  for (const int32_t t : replay.graph.transfers_of[node]) {
    const TransferTimes& transfer = replay.transfers[static_cast<size_t>(t)];
    intervals.push_back({transfer.ready, transfer.start, Activity::kLaunch});
    intervals.push_back({transfer.start, transfer.end, Activity::kWire});
  }
}

/// What of a transfer crosses a link: its part of each way that does.
double bytes_over(const StepGraph& graph, int32_t id, int32_t link) {
  const Transfer& transfer = graph.transfers[static_cast<size_t>(id)];
  const std::span<const Way> ways = graph.ways_of(transfer);
  const auto crosses = [&](const Way& way) {
    return std::ranges::count(graph.links_of(way), link) > 0;
  };
  return static_cast<double>(transfer.bytes) / static_cast<double>(ways.size()) *
         static_cast<double>(std::ranges::count_if(ways, crosses));
}

}  // namespace

std::span<const int32_t> links_of(const Replay& replay, size_t transfer) {
  return replay.graph.links_of(replay.graph.transfers[transfer]);
}

void sort_by_start(const Replay& replay, std::vector<int32_t>& transfers) {
  const auto key = [&](int32_t id) {
    const auto t = static_cast<size_t>(id);
    return std::pair(replay.transfers[t].start, replay.graph.transfers[t].number);
  };
  std::ranges::sort(transfers, {}, key);
}

std::vector<LinkUsage> link_uses(const Replay& replay, double refit_s) {
  std::vector<std::pair<int32_t, int32_t>> pairs;  // link, transfer
  for (size_t t = 0; t < replay.transfers.size(); ++t) {
    for (const int32_t link : links_of(replay, t))
      pairs.emplace_back(link, static_cast<int32_t>(t));
  }
  const Rows rows(replay.link_bytes.size(), pairs);
  std::vector<LinkUsage> uses;
  for (size_t link = 0; link < replay.link_bytes.size(); ++link) {
    const auto row = rows[static_cast<int32_t>(link)];
    if (row.empty()) continue;
    std::vector<int32_t> order(row.begin(), row.end());
    sort_by_start(replay, order);
    LinkUsage use{
        .link = static_cast<int32_t>(link),
        .bytes = replay.link_bytes[link],
        .use = refit_s > 0 ? replay.link_bytes[link] / replay.graph.capacity[link] / refit_s : 0,
        .busy_s = replay.link_busy_s[link],
        .first = replay.transfers[static_cast<size_t>(order[0])].start,
        .last = 0,
        .transfers = std::ssize(order),
        .busy = {},
        .gaps = {}};
    use.last = use.first;
    for (const int32_t t : order) {
      const TransferTimes& times = replay.transfers[static_cast<size_t>(t)];
      const bool idle = times.start > use.last;
      if (idle) use.gaps.push_back({use.last, times.start, t});
      if (idle || use.busy.empty()) use.busy.push_back({times.start, times.start, 0, 0});
      use.last = std::max(use.last, times.end);
      BusyTime& busy = use.busy.back();
      busy.to = use.last;
      busy.bytes += bytes_over(replay.graph, t, use.link);
      ++busy.transfers;
    }
    uses.push_back(std::move(use));
  }
  std::stable_sort(uses.begin(), uses.end(),
                   [](const LinkUsage& a, const LinkUsage& b) { return a.use > b.use; });
  return uses;
}

std::vector<int32_t> transfers_over(const Replay& replay, int32_t link) {
  std::vector<int32_t> found;
  for (size_t t = 0; t < replay.transfers.size(); ++t) {
    const auto links = links_of(replay, t);
    if (std::find(links.begin(), links.end(), link) != links.end())
      found.push_back(static_cast<int32_t>(t));
  }
  sort_by_start(replay, found);
  return found;
}

TimeSplit rank_split(const Replay& replay, const CostModel& cost, int32_t rank, double end) {
  std::vector<Interval> intervals;
  for (const int32_t node : replay.graph.nodes_of(rank))
    add_intervals(replay, cost, node, intervals);
  return split_time(intervals, end);
}

std::vector<RankUsage> rank_uses(const Replay& replay, const CostModel& cost, size_t ranks,
                                 double refit_s) {
  std::vector<RankUsage> uses(ranks);
  for (size_t rank = 0; rank < ranks; ++rank) {
    std::vector<Interval> intervals;
    for (const int32_t node : replay.graph.nodes_of(static_cast<int32_t>(rank))) {
      add_intervals(replay, cost, node, intervals);
      uses[rank].end = std::max(uses[rank].end, replay.nodes[static_cast<size_t>(node)].end);
    }
    uses[rank].split = split_time(intervals, refit_s);
  }
  for (const Transfer& transfer : replay.graph.transfers) {
    uses[static_cast<size_t>(transfer.from)].bytes_out += transfer.bytes;
    uses[static_cast<size_t>(transfer.to)].bytes_in += transfer.bytes;
  }
  return uses;
}

}  // namespace refit
