#include "sim/simulator/maxmin.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <type_traits>
#include <utility>

#include "base/error.h"

namespace refit {
namespace {

/// A resource with more slack than this part of its capacity is not visited; far above what
/// rounding can add up to.
constexpr double kAmple = 1e-9;

/// Solves that start with a refill before one tries to be local again.
constexpr int32_t kRefills = 32;

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

MaxMin::MaxMin(std::vector<double> capacity, int32_t width, double patience)
    : width_(static_cast<size_t>(width)),
      patience_(patience),
      capacity_(std::move(capacity)),
      slack_(capacity_) {
  REFIT_CHECK(width >= 1);
  for (const double c : capacity_) REFIT_CHECK(c > 0 && c < kInfinity);
  capacity_.push_back(kInfinity);
  slack_.push_back(kInfinity);
  level_.assign(capacity_.size(), kInfinity);
  members_.resize(capacity_.size());
  dirty_.assign(capacity_.size(), 0);
  dirty_.back() = 1;  // the padding: never marked
  moved_.assign(capacity_.size(), 0);
  filling_.resize(capacity_.size());
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
          : capacity_[r] / static_cast<double>(std::max<size_t>(members_[r].flow.size(), 1));
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
    bottleneck_.push_back(kUnknown);
    live_.push_back(1);
    changing_.push_back(0);
    frozen_by_cap_.push_back(0);
    crossing_.resize(crossing_.size() + width_, padding);
    position_.resize(position_.size() + width_, 0);
  } else {
    flow = free_.back();
    free_.pop_back();
    cap_[static_cast<size_t>(flow)] = cap;
    bottleneck_[static_cast<size_t>(flow)] = kUnknown;
    live_[static_cast<size_t>(flow)] = 1;
  }
  const size_t first = static_cast<size_t>(flow) * width_;
  for (size_t k = 0; k < width_; ++k) {
    crossing_[first + k] = k < resources.size() ? resources[k] : padding;
    if (k >= resources.size()) continue;
    const auto r = static_cast<size_t>(resources[k]);
    REFIT_CHECK(r + 1 < capacity_.size());
    ++entries_;
    if (cap < kInfinity) filling_[r].capped = true;
    Members& members = members_[r];
    const size_t place = members.flow.size();
    position_[first + k] = static_cast<int32_t>(place);
    members.flow.push_back(flow);
    members.cap.push_back(cap);
    for (const int32_t other : resources) {
      if (other != resources[k]) members.others.push_back(other);
    }
    members.others.resize((place + 1) * (width_ - 1), padding);

    const double limit = limit_of(members, place);
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
    --entries_;
    Members& members = members_[r];
    const auto place = static_cast<size_t>(position_[f * width_ + k]);
    const double limit = limit_of(members, place);
    const int32_t last = members.flow.back();
    members.flow[place] = last;
    members.cap[place] = members.cap.back();
    std::copy(members.others.end() - static_cast<ptrdiff_t>(width_ - 1), members.others.end(),
              members.others.begin() + static_cast<ptrdiff_t>(place * (width_ - 1)));
    members.flow.pop_back();
    members.cap.pop_back();
    members.others.resize(members.others.size() - (width_ - 1));
    for (size_t j = 0; j < width_; ++j) {
      const size_t entry = static_cast<size_t>(last) * width_ + j;
      if (crossing_[entry] == resource) position_[entry] = static_cast<int32_t>(place);
    }
    // On a resource with slack nothing else changes; the sum of c_f held min(K_f, levels), which is
    // the flow's rate.
    if (level_[r] < kInfinity) {
      mark(resource);
    } else if (!dirty_[r]) {
      slack_[r] += limit;
    }
  }
  live_[f] = 0;
  free_.push_back(flow);
}

double MaxMin::limit_of(const Members& members, size_t i) const {
  double limit = members.cap[i];
  for (const int32_t other : others_of(members, i))
    limit = std::min(limit, level_[static_cast<size_t>(other)]);
  return limit;
}

double MaxMin::solve_level(int32_t resource) {
  const auto r = static_cast<size_t>(resource);
  const Members& members = members_[r];
  limit_.resize(members.flow.size());
  if (limit_.size() <= 1) {
    const double total = limit_.empty() ? 0 : limit_[0] = limit_of(members, 0);
    slack_[r] = capacity_[r] - total;
    return slack_[r] > kTolerance * capacity_[r] ? kInfinity : std::min(total, capacity_[r]);
  }
  // Spans of its own: the compiler then knows that nothing below moves them.
  const std::span<double> limit = limit_;
  const std::span<const double> cap = members.cap, level = level_;
  const std::span<const int32_t> others = members.others;
  double total = 0;
  for (size_t i = 0, next = 0; i < limit.size(); ++i) {
    double least = cap[i];
    for (const size_t last = next + width_ - 1; next < last; ++next)
      least = std::min(least, level[static_cast<size_t>(others[next])]);
    limit[i] = least;
    total += least;
  }
  slack_[r] = capacity_[r] - total;
  if (slack_[r] > kTolerance * capacity_[r]) return kInfinity;
  return fill(limit_, capacity_[r], level_[r]);
}

void MaxMin::visit(int32_t resource) {
  ++visits_;
  const auto r = static_cast<size_t>(resource);
  const double before = level_[r];
  const double after = solve_level(resource);
  if (same(before, after)) return;
  set_level(resource, after);
  const double low = std::min(before, after) * (1 + kTolerance);
  const Members& members = members_[r];
  const std::span<const double> limit = limit_;
  const std::span<const int32_t> flows = members.flow, held_by = bottleneck_;
  for (size_t i = 0; i < limit.size(); ++i) {
    const int32_t flow = flows[i];
    const bool held_here = held_by[static_cast<size_t>(flow)] == resource;
    if (limit[i] >= after) {
      if (!held_here) assign(flow, resource);
    } else if (held_here) {
      find_bottleneck(flow);
    }
    if (limit[i] <= low) continue;
    const double gain = std::min(after, limit[i]) - std::min(before, limit[i]);
    for (const int32_t other : others_of(members, i)) {
      const auto q = static_cast<size_t>(other);
      if (dirty_[q]) continue;
      if (level_[q] == kInfinity) {
        slack_[q] -= gain;
        if (slack_[q] > kAmple * capacity_[q]) continue;
      }
      mark(other);
    }
  }
}

void MaxMin::assign(int32_t flow, int32_t bottleneck) {
  const auto f = static_cast<size_t>(flow);
  bottleneck_[f] = bottleneck;
  if (std::exchange(changing_[f], uint8_t{1}) == 0) changed_.push_back(flow);
}

void MaxMin::find_bottleneck(int32_t flow) {
  double rate = cap_[static_cast<size_t>(flow)];
  int32_t bottleneck = kOwnCap;
  for (const int32_t resource : resources_of(flow)) {
    const double level = level_[static_cast<size_t>(resource)];
    if (level >= rate) continue;
    rate = level;
    bottleneck = resource;
  }
  assign(flow, bottleneck);
}

double MaxMin::rate(int32_t flow) const {
  const auto f = static_cast<size_t>(flow);
  if (bottleneck_[f] == kUnknown) return 0;
  return bottleneck_[f] == kOwnCap ? cap_[f] : level(bottleneck_[f]);
}

/// Visits what is dirty and what follows; false when that went too far.
bool MaxMin::solve_locally() {
  const double most =
      patience_ * static_cast<double>(entries_ + static_cast<int64_t>(capacity_.size()));
  double seen = 0;
  refills_ = 0;
  for (crowded_ = false; !queue_.empty(); crowded_ = seen > most) {
    if (crowded_) return false;
    std::pop_heap(queue_.begin(), queue_.end(), std::greater<>());
    const int32_t resource = queue_.back().second;
    queue_.pop_back();
    dirty_[static_cast<size_t>(resource)] = 0;
    visit(resource);
    seen += static_cast<double>(members_[static_cast<size_t>(resource)].flow.size());
  }
  return true;
}

void MaxMin::refill() {
  ++refills_;
  ++refill_count_;
  for (const auto& [key, resource] : queue_) dirty_[static_cast<size_t>(resource)] = 0;
  queue_.clear();
  in_use_.clear();
  for (size_t r = 0; r + 1 < capacity_.size(); ++r) {
    const auto open = static_cast<int32_t>(members_[r].flow.size());
    filling_[r] = {.open = open, .capped = filling_[r].capped};
    if (open > 0) {
      in_use_.push_back(static_cast<int32_t>(r));
    } else {
      slack_[r] = capacity_[r];
      set_level(static_cast<int32_t>(r), kInfinity);
    }
  }
  turns_.reset(in_use_.size());
  for (size_t i = 0; i < in_use_.size(); ++i)
    turns_.put(i, lift_of(static_cast<size_t>(in_use_[i])));
  turns_.build();
  while (turns_.least() < kInfinity) {
    const size_t winner = turns_.winner();
    const int32_t resource = in_use_[winner];
    const double turn = turns_.least();
    const Filling& filling = filling_[static_cast<size_t>(resource)];
    const auto lift = [&] { return lift_of(static_cast<size_t>(resource)); };
    // Where others have frozen flows since, those that are left get more: its turn comes later.
    const bool later =
        filling.open > 0 &&
        (lift() > turn * (1 + kTolerance) ||
         (filling.capped && freeze_capped(resource, lift()) > 0 && filling.open > 0));
    if (!later && filling.open > 0) freeze(resource, std::max(turn, lift()));
    turns_.set(winner, later ? lift() : kInfinity);
  }
  for (const int32_t resource : in_use_) {
    const auto r = static_cast<size_t>(resource);
    slack_[r] = capacity_[r] - filling_[r].frozen;
    const bool is_full = slack_[r] <= kTolerance * capacity_[r];
    set_level(resource, is_full ? filling_[r].last : kInfinity);
  }
}

/// Freezes the flows whose own cap is at most `level`, to which all could be lifted; how many.
size_t MaxMin::freeze_capped(int32_t resource, double level) {
  const Members& members = members_[static_cast<size_t>(resource)];
  size_t count = 0;
  bool some = false;
  for (size_t i = 0; i < members.flow.size(); ++i) {
    const double cap = members.cap[i];
    some = some || cap < kInfinity;
    if (cap > level) continue;
    const int32_t flow = members.flow[i];
    const auto others = others_of(members, i);
    const auto is_full = [&](int32_t q) { return filling_[static_cast<size_t>(q)].full; };
    int64_t& frozen = frozen_by_cap_[static_cast<size_t>(flow)];
    if (frozen == refill_count_ || std::any_of(others.begin(), others.end(), is_full)) continue;
    frozen = refill_count_;
    if (bottleneck_[static_cast<size_t>(flow)] != kOwnCap) assign(flow, kOwnCap);
    for (const int32_t q : resources_of(flow)) {
      Filling& filling = filling_[static_cast<size_t>(q)];
      filling.frozen += cap;
      filling.last = std::max(filling.last, cap);
      --filling.open;
    }
    ++count;
  }
  filling_[static_cast<size_t>(resource)].capped = some;
  return count;
}

/// The resource is full at this level: its flows that are not frozen are held by it.
void MaxMin::freeze(int32_t resource, double level) {
  const auto r = static_cast<size_t>(resource);
  filling_[r] = {capacity_[r], level, 0, true, filling_[r].capped};
  if (width_ == 2) {
    freeze_flows(resource, level, std::integral_constant<size_t, 1>());
  } else {
    freeze_flows(resource, level, width_ - 1);
  }
}

/// `count`: other resources of each flow. Mostly it is one, which the compiler then knows.
template <typename Count>
void MaxMin::freeze_flows(int32_t resource, double level, Count count) {
  const auto r = static_cast<size_t>(resource);
  const bool capped = filling_[r].capped;
  // Spans of its own: the compiler then knows that nothing below moves them.
  const Members& members = members_[r];
  const std::span<const int32_t> flows = members.flow, others = members.others;
  const std::span<const int32_t> held_by = bottleneck_;
  const std::span<Filling> filling = filling_;
  for (size_t i = 0; i < flows.size(); ++i) {
    const auto flow = static_cast<size_t>(flows[i]);
    const size_t first = i * count;
    bool frozen = capped && frozen_by_cap_[flow] == refill_count_;
    for (size_t k = 0; k < count; ++k)
      frozen = frozen || filling[static_cast<size_t>(others[first + k])].full;
    if (frozen) continue;
    for (size_t k = 0; k < count; ++k) {
      Filling& other = filling[static_cast<size_t>(others[first + k])];
      other.frozen += level;
      other.last = level;
      --other.open;
    }
    if (held_by[flow] != resource) assign(flows[i], resource);
  }
}

void MaxMin::set_level(int32_t resource, double level) {
  const auto r = static_cast<size_t>(resource);
  if (same(level_[r], level)) return;
  level_[r] = level;
  if (!moved_[r]) {
    moved_[r] = 1;
    moved_list_.push_back(resource);
  }
}

std::span<const int32_t> MaxMin::solve() {
  for (const int32_t flow : changed_) changing_[static_cast<size_t>(flow)] = 0;
  changed_.clear();
  for (const int32_t resource : moved_list_) moved_[static_cast<size_t>(resource)] = 0;
  moved_list_.clear();
  // Nearly always the next solve is like the last one.
  const bool try_locally = !crowded_ || refills_ == kRefills;
  if (!queue_.empty() && (!try_locally || !solve_locally())) refill();
  for (const int32_t flow : fresh_) {
    const auto f = static_cast<size_t>(flow);
    if (live_[f] && bottleneck_[f] == kUnknown) find_bottleneck(flow);
  }
  fresh_.clear();
  return changed_;
}

}  // namespace refit
