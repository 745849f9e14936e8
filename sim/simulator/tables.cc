#include "sim/simulator/tables.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <ostream>

#include "base/file.h"
#include "sim/simulator/critical.h"
#include "sim/simulator/usage.h"

namespace refit {

void write_transfer_table(const Plan& plan, const Fabric& fabric, const Replay& replay,
                          const std::string& path) {
  std::vector<int32_t> order(replay.transfers.size());
  std::iota(order.begin(), order.end(), 0);
  sort_by_start(replay, order);
  write_stream(path, [&](std::ostream& out) {
    out << "from,to,channel,step,bytes,posted_s,ready_s,start_s,end_s,alone_s,cause,after_rank,"
           "after_channel,after_step,holder\n";
    for (const int32_t t : order) {
      const Transfer& transfer = replay.graph.transfers[static_cast<size_t>(t)];
      const TransferTimes& times = replay.transfers[static_cast<size_t>(t)];
      const Step& step = step_of(plan, replay.graph.nodes[static_cast<size_t>(transfer.sender)]);
      const double posted = std::max(replay.nodes[static_cast<size_t>(transfer.sender)].begin,
                                     replay.nodes[static_cast<size_t>(transfer.receiver)].begin);
      const Begin begin = begin_of_transfer(plan, replay, t);
      std::string after = ",,";
      if (begin.after >= 0) {
        const StepNode& node = replay.graph.nodes[static_cast<size_t>(begin.after)];
        const Step& waited = step_of(plan, node);
        after = fmt::format("{},{},{}", node.rank, waited.channel, waited.id);
      }
      out << fmt::format("{},{},{},{},{},{},{},{},{},{},{},{},{}\n", transfer.from, transfer.to,
                         step.channel, step.id, transfer.bytes, posted, times.ready, times.start,
                         times.end, alone_s(replay, t), cause_name(begin.cause), after,
                         resource_name(replay.graph, fabric, times.holder));
    }
  });
}

void write_link_table(const Fabric& fabric, const Replay& replay, double refit_s,
                      const std::string& path) {
  write_stream(path, [&](std::ostream& out) {
    out << "link,bytes,use,busy_s,transfers,first_s,last_s,gaps,idle_s,longest_gap_s,"
           "longest_gap_from_s\n";
    for (const LinkUsage& use : link_uses(replay, refit_s)) {
      double idle = 0;
      IdleGap longest;
      for (const IdleGap& gap : use.gaps) {
        idle += gap.seconds();
        if (gap.seconds() > longest.seconds()) longest = gap;
      }
      out << fmt::format("{},{:.0f},{},{},{},{},{},{},{},{},{}\n",
                         fabric.links[static_cast<size_t>(use.link)].name, use.bytes, use.use,
                         use.busy_s, use.transfers, use.first, use.last, use.gaps.size(), idle,
                         longest.seconds(), longest.from);
    }
  });
}

void write_rank_table(const Plan& plan, const CostModel& cost, const Replay& replay, double refit_s,
                      const std::string& path) {
  const std::vector<RankUsage> uses = rank_uses(replay, cost, plan.ranks.size(), refit_s);
  write_stream(path, [&](std::ostream& out) {
    out << "rank,end_s,wire_s,staging_s,launch_s,wait_s,bytes_in,bytes_out\n";
    for (size_t rank = 0; rank < uses.size(); ++rank) {
      const RankUsage& use = uses[rank];
      out << fmt::format("{},{},{},{},{},{},{},{}\n", rank, use.end, use.split.wire_s,
                         use.split.staging_s, use.split.launch_s, use.split.wait_s, use.bytes_in,
                         use.bytes_out);
    }
  });
}

}  // namespace refit
