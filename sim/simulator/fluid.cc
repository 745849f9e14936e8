#include "sim/simulator/fluid.h"

#include <algorithm>
#include <array>
#include <functional>
#include <utility>

#include "base/error.h"

namespace refit {
namespace {

constexpr size_t kBlock = 64;

/// Of a multiple of eight values. Eight at a time: a single one would wait for each comparison.
double least_of(std::span<const double> values) {
  std::array<double, 8> least;
  least.fill(MaxMin::kInfinity);
  for (size_t i = 0; i < values.size(); i += least.size()) {
    for (size_t lane = 0; lane < least.size(); ++lane)
      least[lane] = std::min(least[lane], values[i + lane]);
  }
  return *std::min_element(least.begin(), least.end());
}

}  // namespace

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
  stale_.resize(blocks, 0);
  for (Ends* ends : {&must_, &may_}) {
    ends->clock.resize(blocks * kBlock, MaxMin::kInfinity);
    ends->block.resize((blocks + 7) / 8 * 8, MaxMin::kInfinity);
  }
}

int32_t Fluid::start(double amount, std::span<const int32_t> resources, double cap) {
  REFIT_CHECK(amount > 0);
  const int32_t flow = rates_.add_flow(resources, cap);
  const auto f = static_cast<size_t>(flow);
  if (f >= flows_.size()) flows_.resize(f + 1);
  if (recording_) {
    came_.resize(flows_.size(), 0);
    held_.resize(flows_.size() * (width_ + 1), 0);
    std::fill_n(held_.begin() + static_cast<ptrdiff_t>(f * (width_ + 1)), width_ + 1, 0.0);
  }
  flows_[f].left = amount * (1 + error_);
  flows_[f].spare = amount * 2 * error_;
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

void Fluid::leave(double now, int32_t id) {
  Flow& flow = at(id);
  ++flow.stay;
  const int32_t clock = std::exchange(flow.clock, -1);
  if (clock < 0) return;
  flow.left = std::max(0.0, flow.mark - clocks_[static_cast<size_t>(clock)].passed_at(now));
  if (recording_) record(now, id, clock);
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

void Fluid::join(double now, int32_t id) {
  Flow& flow = at(id);
  flow.clock = clock_of(id);
  if (recording_) came_[static_cast<size_t>(id)] = now;
  Clock& clock = clocks_[static_cast<size_t>(flow.clock)];
  if (clock.must.empty()) clock.set_pace(now, clock.pace);
  const auto add = [&](std::vector<Mark>& heap, double mark) {
    heap.push_back({mark, id, flow.stay});
    std::push_heap(heap.begin(), heap.end(), std::greater<>());
  };
  flow.mark = clock.passed_at(now) + flow.left;
  add(clock.must, flow.mark);
  if (error_ > 0) add(clock.may, flow.mark - flow.spare);
  touch(flow.clock);
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
  while (!heap.empty() &&
         heap.front().stay != flows_[static_cast<size_t>(heap.front().flow)].stay) {
    std::pop_heap(heap.begin(), heap.end(), std::greater<>());
    heap.pop_back();
  }
  return heap.empty() ? MaxMin::kInfinity : clock.time_of(heap.front().at);
}

void Fluid::refresh_touched() {
  for (const int32_t id : touched_list_) {
    const auto c = static_cast<size_t>(id);
    Clock& clock = clocks_[c];
    must_.clock[c] = first_end(clock, clock.must);
    if (error_ > 0) may_.clock[c] = first_end(clock, clock.may);
    touched_[c] = 0;
    if (std::exchange(stale_[c / kBlock], uint8_t{1}) == 0) stale_list_.push_back(c / kBlock);
  }
  touched_list_.clear();
  if (stale_list_.empty()) return;
  const auto refresh = [&](Ends& ends) {
    for (const size_t block : stale_list_)
      ends.block[block] = least_of(std::span(ends.clock).subspan(block * kBlock, kBlock));
    ends.least = least_of(ends.block);
  };
  refresh(must_);
  if (error_ > 0) refresh(may_);
  for (const size_t block : stale_list_) stale_[block] = 0;
  stale_list_.clear();
}

void Fluid::finish(double now, std::vector<int32_t>& ended) {
  const double until = now * (1 + kSimultaneous);
  Ends& ends = may();
  if (ends.least > until) return;
  const auto first = std::ssize(ended);
  for (size_t block = 0; block * kBlock < clocks_.size(); ++block) {
    if (ends.block[block] > until) continue;
    const size_t last = std::min((block + 1) * kBlock, clocks_.size());
    for (size_t c = block * kBlock; c < last; ++c) {
      if (ends.clock[c] > until) continue;
      Clock& clock = clocks_[c];
      std::vector<Mark>& heap = may_of(clock);
      do {
        const int32_t flow = heap.front().flow;
        leave(now, flow);
        rates_.remove_flow(flow);
        ended.push_back(flow);
        ends.clock[c] = first_end(clock, heap);
      } while (ends.clock[c] <= until);
    }
  }
  std::sort(ended.begin() + first, ended.end());
}

}  // namespace refit
