#include "sim/simulator/trace.h"

#include <fmt/format.h>

#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "base/file.h"
#include "sim/simulator/usage.h"

namespace refit {
namespace {

class TraceWriter {
 public:
  void metadata(const char* kind, int32_t rank, int32_t row, const std::string& argument) {
    separate();
    fmt::format_to(std::back_inserter(text_),
                   R"({{"ph":"M","name":"{}","pid":{},"tid":{},"args":{{{}}}}})", kind, rank, row,
                   argument);
  }

  void transfer(const TimelineEntry& entry, int32_t rank) {
    const bool sends = entry.from == rank;
    const int32_t peer = sends ? entry.to : entry.from;
    const std::string name = entry.from == entry.to ? "copy"
                             : sends                ? fmt::format("to {}", peer)
                                                    : fmt::format("from {}", peer);
    separate();
    fmt::format_to(
        std::back_inserter(text_),
        R"({{"ph":"X","name":"{}","cat":"{}","pid":{},"tid":{},"ts":{:.3f},"dur":{:.3f},)"
        R"("args":{{"bytes":{},"peer":{},"step":{},"posted_us":{:.3f}}}}})",
        name, entry.from == entry.to ? "copy" : (sends ? "send" : "receive"), rank,
        row_of(entry, rank), entry.start * 1e6, (entry.end - entry.start) * 1e6, entry.bytes, peer,
        entry.step, entry.posted * 1e6);
  }

  /// A time in which a link was in use.
  void busy(const BusyTime& time, double rate, int32_t process, int32_t row) {
    const double seconds = time.to - time.from;
    const double use = seconds > 0 ? time.bytes / (rate * seconds) : 0;
    separate();
    fmt::format_to(
        std::back_inserter(text_),
        R"({{"ph":"X","name":"{:.0f} %","cat":"link","pid":{},"tid":{},"ts":{:.3f},"dur":{:.3f},)"
        R"("args":{{"bytes":{:.0f},"transfers":{},"use":{:.4f}}}}})",
        100 * use, process, row, time.from * 1e6, seconds * 1e6, time.bytes, time.transfers, use);
  }

  /// Rows in use, by (rank, row).
  const std::map<std::pair<int32_t, int32_t>, double>& rows() const { return row_end_; }

  std::string finish() && { return std::move(text_) + "\n]}\n"; }

 private:
  void separate() {
    if (!std::exchange(first_, false)) text_ += ",";
    text_ += "\n";
  }

  /// The first row of the channel that is free by then: viewers drop slices that overlap in one
  /// row.
  int32_t row_of(const TimelineEntry& entry, int32_t rank) {
    int32_t row = entry.channel;
    while (true) {
      const auto [found, added] = row_end_.try_emplace({rank, row}, entry.end);
      if (added) return row;
      if (found->second <= entry.start) {
        found->second = entry.end;
        return row;
      }
      row += kMaxChannels;
    }
  }

  std::string text_ = R"({"displayTimeUnit":"ms","traceEvents":[)";
  bool first_ = true;
  std::map<std::pair<int32_t, int32_t>, double> row_end_;
};

}  // namespace

void write_trace(const Plan& plan, const Fabric& fabric, const CostModel& cost,
                 const Replay& replay, const std::string& path) {
  const Timeline timeline = make_timeline(plan, replay, cost, /*entries=*/true);
  TraceWriter writer;
  const auto name = [](const std::string& text) {
    const nlohmann::json quoted = text;
    return "\"name\":" + quoted.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  };
  for (size_t rank = 0; rank < plan.ranks.size(); ++rank) {
    writer.metadata("process_name", static_cast<int32_t>(rank), 0,
                    name(fmt::format("rank {} on {}", rank, plan.ranks[rank].node)));
  }
  for (const TimelineEntry& entry : timeline.entries) {
    writer.transfer(entry, entry.from);
    if (entry.to != entry.from) writer.transfer(entry, entry.to);
  }
  for (const auto& [key, end] : writer.rows()) {
    const auto [rank, row] = key;
    const int32_t channel = row % kMaxChannels;
    const Lane lane = plan.channels[static_cast<size_t>(channel)].lane;
    writer.metadata("thread_name", rank, row,
                    fmt::format(R"("name":"channel {} {}")", channel, lane_name(lane)));
    writer.metadata("thread_sort_index", rank, row,
                    fmt::format(R"("sort_index":{})", channel * 1000 + row / kMaxChannels));
  }

  const auto links = static_cast<int32_t>(plan.ranks.size());  // the process after the ranks
  writer.metadata("process_name", links, 0, name("links"));
  writer.metadata("process_sort_index", links, 0, fmt::format(R"("sort_index":{})", links));
  int32_t row = 0;
  for (const LinkUsage& use : link_uses(replay, timeline.refit_s)) {
    const auto link = static_cast<size_t>(use.link);
    writer.metadata("thread_name", links, row, name(fabric.links[link].name));
    writer.metadata("thread_sort_index", links, row, fmt::format(R"("sort_index":{})", row));
    for (const BusyTime& time : use.busy)
      writer.busy(time, replay.graph.capacity[link], links, row);
    ++row;
  }
  write_file(path, std::move(writer).finish());
}

}  // namespace refit
