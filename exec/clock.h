#pragma once

#include <chrono>

namespace refit {

using Clock = std::chrono::steady_clock;

inline Clock::duration to_duration(double seconds) {
  return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

inline Clock::time_point from_now(double seconds) { return Clock::now() + to_duration(seconds); }

inline double seconds_since(Clock::time_point time) {
  return std::chrono::duration<double>(Clock::now() - time).count();
}

}  // namespace refit
