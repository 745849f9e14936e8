#include "sim/cost/nccl_log.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>

#include "base/error.h"
#include "base/text.h"
#include "base/units.h"

namespace refit {
namespace {

constexpr NcclTest kTests[] = {NcclTest::kSendRecv, NcclTest::kAllToAll, NcclTest::kAllGather,
                               NcclTest::kBroadcast};
// Programs of nccl-tests that say nothing about a transfer.
constexpr const char* kOthers[] = {"all_reduce", "reduce_scatter", "reduce",
                                   "gather",     "scatter",        "hypercube"};

constexpr int64_t kMostBytes = int64_t{1} << 53;

/// The test that a text names as NAME_perf or, in a file's name, as NAME.
std::optional<NcclTest> find_test(std::string_view text, const char* suffix,
                                  const std::string& place) {
  for (const NcclTest test : kTests) {
    if (text.find(std::string(test_name(test)) + suffix) != std::string_view::npos) return test;
  }
  for (const char* other : kOthers) {
    if (text.find(std::string(other) + suffix) != std::string_view::npos)
      fail(place, other, "a log of sendrecv, alltoall, all_gather or broadcast");
  }
  return std::nullopt;
}

double parse_figure(std::string_view word, const std::string& place) {
  double value = 0;
  const auto [end, code] = std::from_chars(word.data(), word.data() + word.size(), value);
  if (code != std::errc() || end != word.data() + word.size() || !(value >= 0) ||
      !std::isfinite(value))
    fail(place, quote(word), "a number");
  return value;
}

class LogReader {
 public:
  explicit LogReader(const std::string& name) { log_.name = name; }

  NcclLog read(std::string_view text) {
    for (const std::string_view line : split_lines(text)) {
      ++line_;
      read_line(line);
    }
    finish();
    return std::move(log_);
  }

 private:
  std::string place() const { return fmt::format("{}:{}", log_.name, line_); }

  void read_line(std::string_view line) {
    const std::vector<std::string_view> words = split_words(line);
    if (words.empty()) return;
    if (words[0] == "#") {
      read_comment(line, words);
    } else if (words[0].find_first_not_of("0123456789") == std::string_view::npos) {
      read_row(words);
    } else if (!test_ && line.find("_perf") != std::string_view::npos) {
      test_ = find_test(line, "_perf", place());
    }
  }

  void read_comment(std::string_view line, const std::vector<std::string_view>& words) {
    const auto has = [&](std::string_view word) {
      return std::find(words.begin(), words.end(), word) != words.end();
    };
    if (words.size() > 2 && words[1] == "Rank") {
      read_rank(words);
    } else if (has("size") && has("count") && has("type")) {
      columns_.assign(words.begin() + 1, words.end());
      if (has("cputime")) fail(place(), "times of the CPU (cputime)", "times of the GPU");
    } else if (line.find("Collective test starting:") != std::string_view::npos) {
      test_ = find_test(line, "_perf", place());
    } else if (line.find("Out of bounds values") != std::string_view::npos && !has("OK")) {
      fail(place(), quote(line), "values within bounds");
    } else if (line.find("Avg bus bandwidth") != std::string_view::npos) {
      closed_ = true;
    }
  }

  /// "# Rank 0 Group 0 Pid 12345 on HOST device 0 [0x1b] NAME"; no Group in old versions.
  void read_rank(const std::vector<std::string_view>& words) {
    const auto rank = parse_int(words[2], 0, (1 << 20) - 1, place());
    if (rank != std::ssize(log_.hosts))
      fail(place(), fmt::format("rank {}", rank), fmt::format("rank {}", log_.hosts.size()));
    const auto on = std::find(words.begin(), words.end(), "on");
    if (words.end() - on < 3 || on[2] != "device") fail(place(), "no host", "'on HOST device N'");
    log_.hosts.emplace_back(on[1]);
  }

  void read_row(const std::vector<std::string_view>& words) {
    if (columns_.empty()) fail(place(), "a row", "a line of column names before it");
    if (words.size() != columns_.size())
      fail(place(), fmt::format("{} columns", words.size()),
           fmt::format("{}, as in the line of their names", columns_.size()));
    const auto time =
        static_cast<size_t>(std::find(columns_.begin(), columns_.end(), "time") - columns_.begin());
    // time, algbw, busbw, #wrong (once "error"), and the same in place.
    if (time + 4 > columns_.size() || columns_[time + 1] != "algbw")
      fail(place(), "no column 'time' with 'algbw' after it", "the columns of nccl-tests");
    NcclLog::Row row{.line = line_,
                     .bytes = parse_int(words[0], 0, kMostBytes, place()),
                     .seconds = parse_figure(words[time], place()) * 1e-6};
    if (row.bytes == 0) return;  // less than a byte a rank
    if (row.seconds == 0) fail(place(), "no time", "more than 0");
    const double algbw = parse_figure(words[time + 1], place());
    const double expected = static_cast<double>(row.bytes) / row.seconds * 1e-9;
    if (std::abs(algbw - expected) > 0.01 + 0.01 * expected)
      fail(place(), fmt::format("algbw {}", words[time + 1]),
           fmt::format("{:.2f}, which is size / time", expected));
    const std::string_view wrong = words[time + 3];
    if (wrong != "N/A" && parse_figure(wrong, place()) > 0 && columns_[time + 3] == "#wrong")
      fail(place(), fmt::format("{} wrong values", wrong), "none");
    log_.rows.push_back(row);
  }

  void finish() {
    if (!test_) test_ = find_test(log_.name, "", log_.name);
    if (!test_)
      fail(log_.name, "no name of a test in the log or the file's name",
           "sendrecv, alltoall, all_gather or broadcast");
    log_.test = *test_;
    if (log_.hosts.size() < 2)
      fail(log_.name, fmt::format("{} ranks", log_.hosts.size()), "two or more ('# Rank 0 ...')");
    if (log_.rows.empty()) fail(log_.name, "no rows", "sizes with their times");
    if (!closed_) fail(log_.name, "an end before '# Avg bus bandwidth'", "a complete log");
  }

  NcclLog log_;
  int line_ = 0;
  bool closed_ = false;
  std::optional<NcclTest> test_;
  std::vector<std::string> columns_;
};

}  // namespace

const char* test_name(NcclTest test) {
  switch (test) {
    case NcclTest::kSendRecv:
      return "sendrecv";
    case NcclTest::kAllToAll:
      return "alltoall";
    case NcclTest::kAllGather:
      return "all_gather";
    case NcclTest::kBroadcast:
      return "broadcast";
  }
  check_failed("a test", __FILE__, __LINE__);
}

NcclLog parse_nccl_log(std::string_view text, const std::string& name) {
  return LogReader(name).read(text);
}

}  // namespace refit
