#pragma once

#include <cstdint>
#include <span>

namespace refit {

/// What a rank is doing, in order of precedence: an instant in which it does several things counts
/// as the first of them.
enum class Activity : uint8_t { kWire, kStaging, kLaunch };

struct Interval {
  double from = 0, to = 0;
  Activity activity = Activity::kWire;
};

struct TimeSplit {
  double wire_s = 0, staging_s = 0, launch_s = 0, wait_s = 0;  // they add up to the total
};

/// Splits [0, total] by what the intervals say; what no interval covers is waiting.
TimeSplit split_time(std::span<const Interval> intervals, double total);

}  // namespace refit
