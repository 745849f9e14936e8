#include "sim/search/fit.h"

#include <fmt/core.h>

#include <algorithm>

#include "base/error.h"
#include "base/units.h"

namespace refit {
namespace {

constexpr int64_t kSmallestMessage = int64_t{64} << 10;
constexpr double kTight = 0.97;      // of the bound: what the next attempt aims at,
constexpr double kLeastStep = 0.75;  // and how much smaller its messages are at most

}  // namespace

Plan fit_staging(const SearchOptions& options, int64_t largest,
                 const std::function<Plan(int64_t message)>& build) {
  const int64_t smallest = std::clamp<int64_t>(options.staging_bytes / 64, 64, kSmallestMessage);
  int64_t message = std::clamp(options.staging_bytes / 4, smallest, largest);
  while (true) {
    Plan plan = build(message);
    plan.strategy = options.strategy;
    plan.seed = options.seed;
    plan.staging_bytes = options.staging_bytes;
    const int64_t peak = peak_staging(plan);
    if (peak <= options.staging_bytes) return plan;
    if (message <= smallest) {
      throw Error(fmt::format("--staging: found {}, expected at least {} for strategy {}",
                              print_bytes(static_cast<double>(options.staging_bytes)),
                              print_bytes(static_cast<double>(peak)), options.strategy));
    }
    const double fits =
        kTight * static_cast<double>(options.staging_bytes) / static_cast<double>(peak);
    message = std::max(
        static_cast<int64_t>(static_cast<double>(message) * std::max(fits, kLeastStep)), smallest);
  }
}

}  // namespace refit
