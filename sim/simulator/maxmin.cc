#include "sim/simulator/maxmin.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "base/error.h"

namespace refit {
namespace {

/// A resource with more slack than this part of its capacity is not visited; far above what
/// rounding can add up to.
constexpr double kAmple = 1e-9;

bool same(double a, double b) {
  return a == b || std::abs(a - b) <= MaxMin::kTolerance * std::min(std::abs(a), std::abs(b));
}

struct Below {
  double sum = 0;
  size_t count = 0;
};

/// Sum and number of the values below `level`. Four running sums: a single one would wait for each
/// addition.
Below sum_below(std::span<const double> values, double level) {
  double sum[4] = {};
  double count[4] = {};
  size_t i = 0;
  for (; i + 4 <= values.size(); i += 4) {
    for (size_t lane = 0; lane < 4; ++lane) {
      const double value = values[i + lane];
      sum[lane] += value < level ? value : 0.0;
      count[lane] += value < level ? 1.0 : 0.0;
    }
  }
  for (; i < values.size(); ++i) {
    sum[0] += values[i] < level ? values[i] : 0.0;
    count[0] += values[i] < level ? 1.0 : 0.0;
  }
  return {(sum[0] + sum[1]) + (sum[2] + sum[3]),
          static_cast<size_t>((count[0] + count[1]) + (count[2] + count[3]))};
}

/// The least v with sum of min(v, limit) = capacity, given that the limits sum up to the capacity
/// (but for rounding).
double fill(std::span<const double> limits, double capacity, double guess) {
  const double lowest = capacity / static_cast<double>(limits.size());
  double level = guess < MaxMin::kInfinity ? guess : lowest;
  // The sum is concave in v: from wherever Newton starts, its first step ends at or below the
  // solution and the others ascend.
  size_t last = limits.size();
  for (bool first = true;; first = false) {
    const Below below = sum_below(limits, level);
    if (below.count == limits.size()) {
      if (!first || level <= lowest) return *std::max_element(limits.begin(), limits.end());
      level = lowest;  // no flow would be held back: too high a guess
      continue;
    }
    const double next = (capacity - below.sum) / static_cast<double>(limits.size() - below.count);
    if (next == level || (!first && (next < level || below.count == last))) return next;
    last = below.count;
    level = next;
  }
}

}  // namespace

MaxMin::MaxMin(std::vector<double> capacity, int32_t width)
    : width_(static_cast<size_t>(width)), capacity_(std::move(capacity)), slack_(capacity_) {
  for (const double c : capacity_) REFIT_CHECK(c > 0 && c < kInfinity);
  capacity_.push_back(kInfinity);
  slack_.push_back(kInfinity);
  level_.assign(capacity_.size(), kInfinity);
  flows_.resize(capacity_.size());
  dirty_.assign(capacity_.size(), 0);
  dirty_.back() = 1;  // the padding: never marked
  moved_.assign(capacity_.size(), 0);
}

std::span<const int32_t> MaxMin::resources_of(int32_t flow) const {
  return {&crossing_[static_cast<size_t>(flow) * width_], width_};
}

void MaxMin::mark(int32_t resource) {
  const auto r = static_cast<size_t>(resource);
  if (dirty_[r]) return;
  dirty_[r] = 1;
  const double key =
      level_[r] < kInfinity
          ? level_[r]
          : capacity_[r] / static_cast<double>(std::max<size_t>(flows_[r].size(), 1));
  queue_.emplace_back(key, resource);
  std::push_heap(queue_.begin(), queue_.end(), std::greater<>());
}

int32_t MaxMin::add_flow(std::span<const int32_t> resources, double cap) {
  REFIT_CHECK(resources.size() <= width_ && cap > 0);
  const auto padding = static_cast<int32_t>(capacity_.size() - 1);
  int32_t flow = 0;
  if (free_.empty()) {
    flow = flow_bound();
    cap_.push_back(cap);
    rate_.push_back(0);
    live_.push_back(1);
    crossing_.resize(crossing_.size() + width_, padding);
    position_.resize(position_.size() + width_, 0);
  } else {
    flow = free_.back();
    free_.pop_back();
    cap_[static_cast<size_t>(flow)] = cap;
    rate_[static_cast<size_t>(flow)] = 0;
    live_[static_cast<size_t>(flow)] = 1;
  }
  const size_t first = static_cast<size_t>(flow) * width_;
  for (size_t k = 0; k < width_; ++k) {
    crossing_[first + k] = k < resources.size() ? resources[k] : padding;
    if (k >= resources.size()) continue;
    const auto r = static_cast<size_t>(resources[k]);
    REFIT_CHECK(r + 1 < capacity_.size());
    position_[first + k] = static_cast<int32_t>(flows_[r].size());
    flows_[r].push_back(flow);

    double limit = cap;
    for (const int32_t other : resources) {
      if (other != resources[k]) limit = std::min(limit, level_[static_cast<size_t>(other)]);
    }
    const bool ample = level_[r] == kInfinity && slack_[r] - limit > kAmple * capacity_[r];
    if (ample && !dirty_[r]) {
      slack_[r] -= limit;
    } else {
      mark(resources[k]);
    }
  }
  fresh_.push_back(flow);
  return flow;
}

void MaxMin::remove_flow(int32_t flow) {
  const auto f = static_cast<size_t>(flow);
  REFIT_CHECK(f < live_.size() && live_[f]);
  const auto padding = static_cast<int32_t>(capacity_.size() - 1);
  for (size_t k = 0; k < width_ && crossing_[f * width_ + k] != padding; ++k) {
    const int32_t resource = crossing_[f * width_ + k];
    const auto r = static_cast<size_t>(resource);
    const int32_t place = position_[f * width_ + k];
    const int32_t last = flows_[r].back();
    flows_[r].pop_back();
    if (last != flow) {
      flows_[r][static_cast<size_t>(place)] = last;
      for (size_t j = 0; j < width_; ++j) {
        const size_t entry = static_cast<size_t>(last) * width_ + j;
        if (crossing_[entry] == resource) position_[entry] = place;
      }
    }
    // On a resource with slack nothing else changes; the sum of c_f held min(K_f, levels), which is
    // the flow's rate.
    if (level_[r] < kInfinity) {
      mark(resource);
    } else if (!dirty_[r]) {
      double limit = cap_[f];
      for (const int32_t other : resources_of(flow)) {
        limit = std::min(limit, level_[static_cast<size_t>(other)]);
      }
      slack_[r] += limit;
    }
  }
  live_[f] = 0;
  free_.push_back(flow);
}

double MaxMin::solve_level(int32_t resource) {
  const auto r = static_cast<size_t>(resource);
  const double guess = level_[r];
  level_[r] = kInfinity;  // so that the minimum below is over the others
  const std::vector<int32_t>& flows = flows_[r];
  limit_.resize(flows.size());
  double total = 0;
  for (size_t i = 0; i < flows.size(); ++i) {
    double limit = cap_[static_cast<size_t>(flows[i])];
    for (const int32_t other : resources_of(flows[i])) {
      limit = std::min(limit, level_[static_cast<size_t>(other)]);
    }
    limit_[i] = limit;
    total += limit;
  }
  level_[r] = guess;
  slack_[r] = capacity_[r] - total;
  if (slack_[r] > kTolerance * capacity_[r]) return kInfinity;
  return fill(limit_, capacity_[r], guess);
}

void MaxMin::visit(int32_t resource) {
  ++visits_;
  const auto r = static_cast<size_t>(resource);
  const double before = level_[r];
  const double after = solve_level(resource);
  if (same(before, after)) return;
  level_[r] = after;
  if (!moved_[r]) {
    moved_[r] = 1;
    moved_list_.emplace_back(resource, before);
  }
  const double low = std::min(before, after) * (1 + kTolerance);
  for (size_t i = 0; i < flows_[r].size(); ++i) {
    if (limit_[i] <= low) continue;
    const double gain = std::min(after, limit_[i]) - std::min(before, limit_[i]);
    for (const int32_t other : resources_of(flows_[r][i])) {
      const auto q = static_cast<size_t>(other);
      if (other == resource || dirty_[q]) continue;
      if (level_[q] == kInfinity) {
        slack_[q] -= gain;
        if (slack_[q] > kAmple * capacity_[q]) continue;
      }
      mark(other);
    }
  }
}

void MaxMin::refresh_rate(int32_t flow) {
  const auto f = static_cast<size_t>(flow);
  double rate = cap_[f];
  for (const int32_t resource : resources_of(flow)) {
    rate = std::min(rate, level_[static_cast<size_t>(resource)]);
  }
  if (same(rate, rate_[f])) return;
  rate_[f] = rate;
  changed_.push_back(flow);
}

std::span<const int32_t> MaxMin::solve() {
  changed_.clear();
  while (!queue_.empty()) {
    std::pop_heap(queue_.begin(), queue_.end(), std::greater<>());
    const int32_t resource = queue_.back().second;
    queue_.pop_back();
    dirty_[static_cast<size_t>(resource)] = 0;
    visit(resource);
  }
  for (const int32_t flow : fresh_) {
    if (live_[static_cast<size_t>(flow)]) refresh_rate(flow);
  }
  fresh_.clear();
  for (const auto& [resource, before] : moved_list_) {
    const auto r = static_cast<size_t>(resource);
    moved_[r] = 0;
    // A flow below both levels was not held back here and is not now: if it has changed, then
    // because of another resource.
    const double low = std::min(before, level_[r]) * (1 - kAmple);
    for (const int32_t flow : flows_[r]) {
      if (rate_[static_cast<size_t>(flow)] >= low) refresh_rate(flow);
    }
  }
  moved_list_.clear();
  return changed_;
}

}  // namespace refit
