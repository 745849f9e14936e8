#include "sim/simulator/fluid.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "base/error.h"

namespace refit {
namespace {
constexpr size_t kBlock = 64;
}

double Fluid::Clock::passed_at(double now) const {
  // An endless pace is that of flows that nothing holds back: they end as they begin.
  return now > since && pace < MaxMin::kInfinity ? passed + pace * (now - since) : passed;
}

void Fluid::Clock::set_pace(double now, double to) {
  // Nothing is lost when nobody is there, and small numbers are more exact.
  passed = must.empty() ? 0 : passed_at(now);
  since = now;
  pace = to;
}

Fluid::Fluid(const std::vector<double>& capacity, int32_t width, double error)
    : error_(error),
      rates_(capacity, width),
      resources_(capacity.size()),
      width_(static_cast<size_t>(width)) {
  REFIT_CHECK(error >= 0 && error < 1);
  add_clocks(capacity.size());
}

void Fluid::add_clocks(size_t count) {
  const size_t size = clocks_.size() + count, blocks = (size + kBlock - 1) / kBlock;
  clocks_.resize(size);
  touched_.resize(size, 0);
  end_.resize(blocks * kBlock, MaxMin::kInfinity);
  may_end_.resize(blocks * kBlock, MaxMin::kInfinity);
  stale_.resize(blocks, 0);
  block_end_.resize(blocks, MaxMin::kInfinity);
  block_may_end_.resize(blocks, MaxMin::kInfinity);
}

int32_t Fluid::start(double amount, std::span<const int32_t> resources, double cap) {
  REFIT_CHECK(amount > 0);
  const int32_t flow = rates_.add_flow(resources, cap);
  const auto f = static_cast<size_t>(flow);
  if (f >= clock_.size()) {
    clock_.resize(f + 1, -1);
    mark_.resize(f + 1, 0);
    left_.resize(f + 1, 0);
    spare_.resize(f + 1, 0);
    stay_.resize(f + 1, 0);
  }
  if (recording_) {
    came_.resize(clock_.size(), 0);
    held_.resize(clock_.size() * (width_ + 1), 0);
    std::fill_n(held_.begin() + static_cast<ptrdiff_t>(f * (width_ + 1)), width_ + 1, 0.0);
  }
  left_[f] = amount * (1 + error_);
  spare_[f] = amount * 2 * error_;
  return flow;
}

int32_t Fluid::clock_of(int32_t flow) {
  const int32_t bottleneck = rates_.bottleneck(flow);
  if (bottleneck >= 0) return bottleneck;
  const double cap = rates_.rate(flow);
  const auto [found, added] = cap_clock_.try_emplace(cap, static_cast<int32_t>(clocks_.size()));
  if (added) {
    add_clocks(1);
    clocks_.back().pace = cap;
  }
  return found->second;
}

void Fluid::touch(int32_t clock) {
  if (std::exchange(touched_[static_cast<size_t>(clock)], uint8_t{1}) == 0)
    touched_list_.push_back(clock);
}

void Fluid::leave(double now, int32_t flow) {
  const auto f = static_cast<size_t>(flow);
  ++stay_[f];
  const int32_t clock = std::exchange(clock_[f], -1);
  if (clock < 0) return;
  left_[f] = std::max(0.0, mark_[f] - clocks_[static_cast<size_t>(clock)].passed_at(now));
  if (recording_) record(now, flow, clock);
  touch(clock);
}

void Fluid::record(double now, int32_t flow, int32_t clock) {
  const auto f = static_cast<size_t>(flow);
  size_t place = width_;  // its own cap
  if (static_cast<size_t>(clock) < resources_) {
    const std::span<const int32_t> crossed = rates_.resources_of(flow);
    place = static_cast<size_t>(std::find(crossed.begin(), crossed.end(), clock) - crossed.begin());
  }
  held_[f * (width_ + 1) + place] += now - came_[f];
}

Fluid::Holder Fluid::holder(int32_t flow) const {
  REFIT_CHECK(recording_);
  const auto held = std::span(held_).subspan(static_cast<size_t>(flow) * (width_ + 1), width_ + 1);
  const auto place = static_cast<size_t>(std::max_element(held.begin(), held.end()) - held.begin());
  if (place == width_ || held[place] == 0) return {MaxMin::kOwnCap, held[place]};
  return {rates_.resources_of(flow)[place], held[place]};
}

void Fluid::join(double now, int32_t flow) {
  const auto f = static_cast<size_t>(flow);
  clock_[f] = clock_of(flow);
  if (recording_) came_[f] = now;
  Clock& clock = clocks_[static_cast<size_t>(clock_[f])];
  if (clock.must.empty()) clock.set_pace(now, clock.pace);
  const auto add = [&](std::vector<Mark>& heap, double at) {
    heap.push_back({at, flow, stay_[f]});
    std::push_heap(heap.begin(), heap.end(), std::greater<>());
  };
  mark_[f] = clock.passed_at(now) + left_[f];
  add(clock.must, mark_[f]);
  if (error_ > 0) add(clock.may, mark_[f] - spare_[f]);
  touch(clock_[f]);
}

void Fluid::settle(double now) {
  const std::span<const int32_t> changed = rates_.solve();
  for (const int32_t flow : changed) leave(now, flow);
  for (const int32_t resource : rates_.moved()) {
    clocks_[static_cast<size_t>(resource)].set_pace(now, rates_.level(resource));
    touch(resource);
  }
  for (const int32_t flow : changed) join(now, flow);
  refresh_touched();
}

/// When the first mark of the heap is reached; drops what has been left behind.
double Fluid::first_end(const Clock& clock, std::vector<Mark>& heap) const {
  while (!heap.empty() && heap.front().stay != stay_[static_cast<size_t>(heap.front().flow)]) {
    std::pop_heap(heap.begin(), heap.end(), std::greater<>());
    heap.pop_back();
  }
  return heap.empty() ? MaxMin::kInfinity : clock.time_of(heap.front().at);
}

void Fluid::refresh_touched() {
  for (const int32_t id : touched_list_) {
    const auto c = static_cast<size_t>(id);
    Clock& clock = clocks_[c];
    end_[c] = first_end(clock, clock.must);
    may_end_[c] = first_end(clock, may_of(clock));
    touched_[c] = 0;
    if (std::exchange(stale_[c / kBlock], uint8_t{1}) == 0) stale_list_.push_back(c / kBlock);
  }
  touched_list_.clear();
  for (const size_t block : stale_list_) {
    stale_[block] = 0;
    const auto least = [first = static_cast<ptrdiff_t>(block * kBlock)](const auto& times) {
      return *std::min_element(times.begin() + first, times.begin() + first + kBlock);
    };
    block_end_[block] = least(end_);
    block_may_end_[block] = least(may_end_);
  }
  stale_list_.clear();
}

double Fluid::next_end() const {
  double next = MaxMin::kInfinity;
  for (const double end : block_end_) next = std::min(next, end);
  return next;
}

void Fluid::finish(double now, std::vector<int32_t>& ended) {
  const double until = now * (1 + kSimultaneous);
  const auto first = std::ssize(ended);
  for (size_t block = 0; block < block_end_.size(); ++block) {
    if (block_may_end_[block] > until) continue;
    const size_t last = std::min((block + 1) * kBlock, clocks_.size());
    for (size_t c = block * kBlock; c < last; ++c) {
      Clock& clock = clocks_[c];
      std::vector<Mark>& heap = may_of(clock);
      for (; may_end_[c] <= until; may_end_[c] = first_end(clock, heap)) {
        const int32_t flow = heap.front().flow;
        leave(now, flow);
        rates_.remove_flow(flow);
        ended.push_back(flow);
      }
    }
  }
  std::sort(ended.begin() + first, ended.end());
  refresh_touched();
}

}  // namespace refit
