#include <fmt/format.h>

#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "base/file.h"
#include "sim/simulator/simulator.h"

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

void write_trace(const Plan& plan, const Timeline& timeline, const std::string& path) {
  TraceWriter writer;
  for (size_t rank = 0; rank < plan.ranks.size(); ++rank) {
    const nlohmann::json name = fmt::format("rank {} on {}", rank, plan.ranks[rank].node);
    writer.metadata(
        "process_name", static_cast<int32_t>(rank), 0,
        "\"name\":" + name.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
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
  write_file(path, std::move(writer).finish());
}

}  // namespace refit
