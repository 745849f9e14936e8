#include "sim/report/figures.h"

#include <fmt/core.h>

#include <algorithm>
#include <map>

#include "base/error.h"

namespace refit {
namespace {

/// Adds `amount`, spread evenly over [start, end), to the columns of one row.
void spread(float* row, int32_t columns, double span, double start, double end, double amount) {
  const auto column_of = [&](double time) {
    return std::clamp(static_cast<int32_t>(time / span), 0, columns - 1);
  };
  const int32_t first = column_of(start), last = column_of(end);
  if (first == last || end <= start) {
    row[first] += static_cast<float>(amount);
    return;
  }
  const double density = amount / (end - start);
  for (int32_t c = first; c <= last; ++c) {
    const double from = std::max(start, c * span), to = std::min(end, (c + 1) * span);
    if (to > from) row[c] += static_cast<float>(density * (to - from));
  }
}

void cut_at_one(Heat& heat) {
  for (float& part : heat.part) part = std::min(part, 1.0F);
}

}  // namespace

Heat rank_activity(const Plan& plan, const Timeline& timeline, int32_t columns) {
  REFIT_CHECK(columns > 0);
  const size_t ranks = plan.ranks.size();
  std::vector<std::vector<std::pair<double, double>>> busy(ranks);
  for (const TimelineEntry& entry : timeline.entries) {  // ordered by start
    for (const int32_t rank : {entry.from, entry.to}) {
      auto& spans = busy[static_cast<size_t>(rank)];
      if (!spans.empty() && entry.start <= spans.back().second) {
        spans.back().second = std::max(spans.back().second, entry.end);
      } else {
        spans.emplace_back(entry.start, entry.end);
      }
    }
  }
  Heat heat{.rows = {}, .columns = columns, .part = {}};
  const double span = timeline.refit_s / columns;
  for (size_t rank = 0; rank < ranks; ++rank) {
    if (busy[rank].empty()) continue;
    heat.rows.push_back(fmt::format("rank {} ({})", rank, plan.ranks[rank].node));
    heat.part.resize(heat.part.size() + static_cast<size_t>(columns));
    float* row = heat.part.data() + heat.part.size() - static_cast<size_t>(columns);
    for (const auto& [start, end] : busy[rank])
      spread(row, columns, span, start, end, (end - start) / span);
  }
  cut_at_one(heat);
  return heat;
}

Heat link_activity(const Replay& replay, const std::vector<LinkUsage>& uses, const Fabric& fabric,
                   double refit_s, int32_t columns, int32_t rows) {
  REFIT_CHECK(columns > 0);
  std::vector<int32_t> row_of(fabric.links.size(), -1);
  Heat heat{.rows = {}, .columns = columns, .part = {}};
  for (const LinkUsage& use : uses) {
    if (std::ssize(heat.rows) == rows) break;
    row_of[static_cast<size_t>(use.link)] = static_cast<int32_t>(heat.rows.size());
    heat.rows.push_back(fabric.links[static_cast<size_t>(use.link)].name);
  }
  heat.part.resize(heat.rows.size() * static_cast<size_t>(columns));
  const double span = refit_s / columns;
  for (size_t t = 0; t < replay.transfers.size(); ++t) {
    const TransferTimes& times = replay.transfers[t];
    const auto bytes = static_cast<double>(replay.graph.transfers[t].bytes);
    for (const int32_t link : links_of(replay, t)) {
      const int32_t row = row_of[static_cast<size_t>(link)];
      if (row < 0) continue;
      spread(heat.part.data() + int64_t{row} * columns, columns, span, times.start, times.end,
             bytes / (replay.graph.capacity[static_cast<size_t>(link)] * span));
    }
  }
  cut_at_one(heat);
  return heat;
}

Traffic node_traffic(const Plan& plan, int32_t most) {
  struct NodeUse {
    bool train = false, gen = false;
  };
  std::vector<std::string> nodes;  // in order of their first rank
  std::map<std::string, int32_t> index;
  std::vector<NodeUse> use;
  std::vector<int32_t> node_of(plan.ranks.size(), -1);
  for (size_t rank = 0; rank < plan.ranks.size(); ++rank) {
    const PlanRank& where = plan.ranks[rank];
    if (where.gpu < 0) continue;
    const auto [found, added] = index.try_emplace(where.node, static_cast<int32_t>(nodes.size()));
    if (added) {
      nodes.push_back(where.node);
      use.emplace_back();
    }
    node_of[rank] = found->second;
    use[static_cast<size_t>(found->second)].train |= where.train;
    use[static_cast<size_t>(found->second)].gen |= where.gen;
  }
  const auto count = static_cast<int32_t>(nodes.size());
  const int32_t group = std::max(1, (count + most - 1) / std::max(1, most));
  const int32_t groups = (count + group - 1) / group;
  Traffic traffic;
  for (int32_t g = 0; g < groups; ++g) {
    const int32_t first = g * group, last = std::min(count, first + group) - 1;
    NodeUse sides;
    for (int32_t n = first; n <= last; ++n) {
      sides.train |= use[static_cast<size_t>(n)].train;
      sides.gen |= use[static_cast<size_t>(n)].gen;
    }
    const std::string& name = nodes[static_cast<size_t>(first)];
    traffic.names.push_back(
        first == last ? name : fmt::format("{}..{}", name, nodes[static_cast<size_t>(last)]));
    traffic.sides.push_back(sides.train && sides.gen ? "train and gen"
                            : sides.train            ? "train"
                                                     : "gen");
  }
  traffic.bytes.resize(static_cast<size_t>(groups) * static_cast<size_t>(groups));
  for (size_t rank = 0; rank < plan.programs.size(); ++rank) {
    const Program& program = plan.programs[rank];
    for (const Step& step : program.steps) {
      for (int32_t m = step.first_send; m < step.first_recv; ++m) {
        const Message& message = program.messages[static_cast<size_t>(m)];
        if (message.peer == static_cast<int32_t>(rank)) continue;
        const int32_t from = node_of[rank] / group;
        const int32_t to = node_of[static_cast<size_t>(message.peer)] / group;
        traffic.bytes[static_cast<size_t>(from * groups + to)] += message_bytes(program, message);
      }
    }
  }
  return traffic;
}

}  // namespace refit
