#include "sim/search/trials.h"

#include <algorithm>

#include "base/error.h"
#include "sim/search/peers.h"
#include "sim/simulator/simulator.h"

namespace refit {
namespace {

constexpr int64_t kTrialTransfers = 300'000;  // about ten seconds of simulation

}  // namespace

Trials::Trials(const Problem& problem, const SearchOptions& options)
    : problem_(problem), options_(options) {}

bool Trials::more() const {
  return attempts_ == 0 ||
         (attempts_ < options_.attempts && transfers_ < kTrialTransfers && !late());
}

bool Trials::late() const {
  const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - begin_;
  return options_.deadline_s > 0 && passed.count() >= options_.deadline_s;
}

void Trials::attempt(const Routing& routing, const RoundTuning& tuning) {
  if (!more() || (options_.max_peers > 0 && count_peers(problem_, routing) > options_.max_peers))
    return;
  Plan plan;
  try {
    plan = schedule_rounds(problem_, routing, options_, tuning);
  } catch (const Error&) {
    if (attempts_ == 0) throw;
    return;
  }
  ++attempts_;
  transfers_ += plan_totals(plan).transfers;
  plan.prediction.predicted_s = simulate(plan, problem_.fabric, problem_.cost).refit_s;
  if (best_routing_ == nullptr || plan.prediction.predicted_s < best_.prediction.predicted_s) {
    best_ = std::move(plan);
    best_routing_ = &routing;
  }
  if (options_.attempted) {
    const double part = static_cast<double>(attempts_) / static_cast<double>(options_.attempts);
    const double simulated = static_cast<double>(transfers_) / static_cast<double>(kTrialTransfers);
    options_.attempted(best_.prediction.predicted_s, std::min(std::max(part, simulated), 1.0));
  }
}

Plan Trials::best() {
  REFIT_CHECK(best_routing_ != nullptr);
  return std::move(best_);
}

}  // namespace refit
