#include "sim/simulator/fluid.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace refit {
namespace {
constexpr size_t kBlock = 64;
}

Fluid::Fluid(std::vector<double> capacity, int32_t width) : rates_(std::move(capacity), width) {}

int32_t Fluid::start(double now, double amount, std::span<const int32_t> resources, double cap) {
  REFIT_CHECK(amount > 0);
  const int32_t flow = rates_.add_flow(resources, cap);
  const auto f = static_cast<size_t>(flow);
  if (f >= end_.size()) {
    const size_t blocks = f / kBlock + 1;
    left_.resize(blocks * kBlock, 0);
    rate_.resize(blocks * kBlock, 0);
    since_.resize(blocks * kBlock, 0);
    end_.resize(blocks * kBlock, MaxMin::kInfinity);
    block_end_.resize(blocks, MaxMin::kInfinity);
    stale_.resize(blocks, 0);
  }
  left_[f] = amount;
  rate_[f] = 0;
  since_[f] = now;
  end_[f] = MaxMin::kInfinity;
  return flow;
}

void Fluid::settle(double now) {
  for (const int32_t flow : rates_.solve()) {
    const auto f = static_cast<size_t>(flow);
    left_[f] = std::max(0.0, left_[f] - rate_[f] * (now - since_[f]));
    since_[f] = now;
    rate_[f] = rates_.rate(flow);
    end_[f] = now + left_[f] / rate_[f];
    const size_t block = f / kBlock;
    if (!stale_[block]) {
      stale_[block] = 1;
      stale_list_.push_back(block);
    }
  }
  for (const size_t block : stale_list_) {
    stale_[block] = 0;
    rescan(block);
  }
  stale_list_.clear();
}

void Fluid::rescan(size_t block) {
  const auto first = end_.begin() + static_cast<ptrdiff_t>(block * kBlock);
  block_end_[block] = *std::min_element(first, first + kBlock);
}

double Fluid::next_end() const {
  double next = MaxMin::kInfinity;
  for (const double end : block_end_) next = std::min(next, end);
  return next;
}

void Fluid::finish(double now, std::vector<int32_t>& ended) {
  const double until = now * (1 + kSimultaneous);
  for (size_t block = 0; block < block_end_.size(); ++block) {
    if (block_end_[block] > until) continue;
    for (size_t f = block * kBlock; f < (block + 1) * kBlock; ++f) {
      if (end_[f] > until) continue;
      const auto flow = static_cast<int32_t>(f);
      rates_.remove_flow(flow);
      left_[f] = 0;
      end_[f] = MaxMin::kInfinity;
      ended.push_back(flow);
    }
    rescan(block);
  }
}

}  // namespace refit
