#include "base/units.h"

#include <fmt/core.h>

#include <array>
#include <charconv>
#include <cmath>
#include <optional>
#include <span>

#include "base/error.h"

namespace refit {
namespace {

struct Unit {
  std::string_view name;
  double scale;
};

constexpr double kKi = 1024, kMi = kKi * 1024, kGi = kMi * 1024, kTi = kGi * 1024;

constexpr auto kRateUnits = std::to_array<Unit>({{"bps", 1.0 / 8},
                                                 {"kbps", 1e3 / 8},
                                                 {"Mbps", 1e6 / 8},
                                                 {"Gbps", 1e9 / 8},
                                                 {"Tbps", 1e12 / 8},
                                                 {"B/s", 1},
                                                 {"kB/s", 1e3},
                                                 {"MB/s", 1e6},
                                                 {"GB/s", 1e9},
                                                 {"TB/s", 1e12},
                                                 {"KiB/s", kKi},
                                                 {"MiB/s", kMi},
                                                 {"GiB/s", kGi},
                                                 {"TiB/s", kTi}});
constexpr auto kByteUnits = std::to_array<Unit>({{"B", 1},
                                                 {"kB", 1e3},
                                                 {"MB", 1e6},
                                                 {"GB", 1e9},
                                                 {"TB", 1e12},
                                                 {"KiB", kKi},
                                                 {"MiB", kMi},
                                                 {"GiB", kGi},
                                                 {"TiB", kTi}});
constexpr auto kTimeUnits =
    std::to_array<Unit>({{"ns", 1e9}, {"us", 1e6}, {"ms", 1e3}, {"s", 1}});  // per second: exact

/// A number and its unit, or nothing. `divide`: the scale divides (so that 2us is 2 / 1e6, the
/// nearest double).
std::optional<double> parse_quantity(std::string_view text, std::span<const Unit> units,
                                     bool divide) {
  if (text.empty() || ((text[0] < '0' || text[0] > '9') && text[0] != '.')) return std::nullopt;
  double number = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (code != std::errc()) return std::nullopt;
  std::string_view rest = text.substr(static_cast<size_t>(end - text.data()));
  while (!rest.empty() && rest[0] == ' ') rest.remove_prefix(1);
  for (const Unit& unit : units) {
    if (rest != unit.name) continue;
    const double value = divide ? number / unit.scale : number * unit.scale;
    return std::isfinite(value) ? std::optional(value) : std::nullopt;
  }
  return std::nullopt;
}

std::string print_scaled(double value, std::span<const Unit> units) {
  // From the largest unit down to the first in which the value, as printed, is at least 1; the
  // smallest takes the rest.
  for (const Unit& unit : units) {
    const double scaled = value / unit.scale;
    if (std::abs(scaled) < 0.99995 && &unit != &units.back()) continue;
    std::string number = fmt::format("{:.{}f}", scaled, std::abs(scaled) < 9.995 ? 2 : 1);
    while (number.find('.') != std::string::npos &&
           (number.back() == '0' || number.back() == '.')) {
      const bool point = number.back() == '.';
      number.pop_back();
      if (point) break;
    }
    return fmt::format("{} {}", number, unit.name);
  }
  REFIT_CHECK(false);
  return "";
}

constexpr auto kPrintBytes =
    std::to_array<Unit>({{"TB", 1e12}, {"GB", 1e9}, {"MB", 1e6}, {"kB", 1e3}, {"B", 1}});
constexpr auto kPrintRates =
    std::to_array<Unit>({{"TB/s", 1e12}, {"GB/s", 1e9}, {"MB/s", 1e6}, {"kB/s", 1e3}, {"B/s", 1}});
constexpr auto kPrintTimes =
    std::to_array<Unit>({{"s", 1}, {"ms", 1e-3}, {"us", 1e-6}, {"ns", 1e-9}});

}  // namespace

double parse_rate(std::string_view text, std::string_view place) {
  const auto rate = parse_quantity(text, kRateUnits, false);
  if (!rate || *rate <= 0) fail(place, quote(text), "a rate above 0 like 400Gbps or 50GB/s");
  return *rate;
}

int64_t parse_bytes(std::string_view text, std::string_view place) {
  constexpr double kLargest = 9007199254740992;  // 2^53: every whole number up to here is a double
  const auto bytes = parse_quantity(text, kByteUnits, false);
  if (!bytes) fail(place, quote(text), "a size like 64MiB or 2GB");
  const double whole = std::round(*bytes);
  if (*bytes > kLargest || std::abs(*bytes - whole) > 1e-12 * whole) {
    fail(place, quote(text), "a whole number of bytes up to 2^53");
  }
  return static_cast<int64_t>(whole);
}

double parse_time(std::string_view text, std::string_view place) {
  const auto time = parse_quantity(text, kTimeUnits, true);
  if (!time) fail(place, quote(text), "a time like 2us or 1.5ms");
  return *time;
}

int64_t parse_int(std::string_view text, int64_t lo, int64_t hi, std::string_view place) {
  int64_t value = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (code != std::errc() || end != text.data() + text.size() || value < lo || value > hi) {
    fail(place, quote(text), fmt::format("an integer from {} to {}", lo, hi));
  }
  return value;
}

std::string print_bytes(double bytes) { return print_scaled(bytes, kPrintBytes); }
std::string print_rate(double bytes_per_second) {
  return print_scaled(bytes_per_second, kPrintRates);
}
std::string print_time(double seconds) {
  return seconds == 0 ? "0 s" : print_scaled(seconds, kPrintTimes);
}

}  // namespace refit
