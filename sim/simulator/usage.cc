#include "sim/simulator/usage.h"

#include <algorithm>
#include <tuple>

namespace refit {
namespace {

auto start_order(const Replay& replay) {
  return [&replay](int32_t a, int32_t b) {
    return std::tuple(replay.transfers[static_cast<size_t>(a)].start, a) <
           std::tuple(replay.transfers[static_cast<size_t>(b)].start, b);
  };
}

/// What occupied a rank, from the times of its steps.
void add_intervals(const Replay& replay, const CostModel& cost, size_t node,
                   std::vector<Interval>& intervals) {
  const StepNode& step = replay.graph.nodes[node];
  const NodeTimes& times = replay.nodes[node];
  const auto job = [&](double begin, double end) {
    intervals.push_back({begin, begin + cost.copy_start, Activity::kLaunch});
    intervals.push_back({begin + cost.copy_start, end, Activity::kStaging});
  };
  intervals.push_back({times.begin, times.begin + step.start_up, Activity::kLaunch});
  if (step.pack_bytes > 0) job(times.begin, times.packed);
  if (step.copies > 0) job(times.begin, times.copied);
  if (step.unpack_bytes > 0) job(times.arrived, times.unpacked);
  for (const int32_t t : replay.graph.transfers_of[static_cast<int32_t>(node)]) {
    const TransferTimes& transfer = replay.transfers[static_cast<size_t>(t)];
    intervals.push_back({transfer.ready, transfer.start, Activity::kLaunch});
    intervals.push_back({transfer.start, transfer.end, Activity::kWire});
  }
}

}  // namespace

std::span<const int32_t> links_of(const Replay& replay, size_t transfer) {
  const int32_t id = replay.graph.transfers[transfer].path;
  return replay.graph.paths[static_cast<size_t>(id)].links;
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
    std::sort(order.begin(), order.end(), start_order(replay));
    LinkUsage use{
        .link = static_cast<int32_t>(link),
        .bytes = replay.link_bytes[link],
        .use = refit_s > 0 ? replay.link_bytes[link] / replay.graph.capacity[link] / refit_s : 0,
        .busy_s = replay.link_busy_s[link],
        .first = replay.transfers[static_cast<size_t>(order[0])].start,
        .last = 0,
        .transfers = std::ssize(order),
        .gaps = {}};
    use.last = use.first;
    for (const int32_t t : order) {
      const TransferTimes& times = replay.transfers[static_cast<size_t>(t)];
      if (times.start > use.last) use.gaps.push_back({use.last, times.start, t});
      use.last = std::max(use.last, times.end);
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
  std::sort(found.begin(), found.end(), start_order(replay));
  return found;
}

std::vector<size_t> first_nodes(const StepGraph& graph, size_t ranks) {
  std::vector<size_t> first(ranks + 1, 0);
  for (const StepNode& node : graph.nodes) ++first[static_cast<size_t>(node.rank) + 1];
  for (size_t rank = 0; rank < ranks; ++rank) first[rank + 1] += first[rank];
  return first;
}

TimeSplit rank_split(const Replay& replay, const CostModel& cost, int32_t rank, double end) {
  std::vector<Interval> intervals;
  for (size_t node = 0; node < replay.nodes.size(); ++node) {
    if (replay.graph.nodes[node].rank == rank) add_intervals(replay, cost, node, intervals);
  }
  return split_time(intervals, end);
}

std::vector<RankUsage> rank_uses(const Replay& replay, const CostModel& cost, size_t ranks,
                                 double refit_s) {
  const std::vector<size_t> first = first_nodes(replay.graph, ranks);
  std::vector<RankUsage> uses(ranks);
  for (size_t rank = 0; rank < ranks; ++rank) {
    std::vector<Interval> intervals;
    for (size_t node = first[rank]; node < first[rank + 1]; ++node) {
      add_intervals(replay, cost, node, intervals);
      uses[rank].end = std::max(uses[rank].end, replay.nodes[node].end);
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
