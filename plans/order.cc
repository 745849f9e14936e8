#include "plans/order.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace refit {

Order::Order(const Plan& plan) : plan_(&plan) {
  collect(plan);
  sort_events();
  seen_.assign(position_.size(), 0);
}

void Order::collect(const Plan& plan) {
  first_.push_back(0);
  for (const Program& program : plan.programs) {
    first_.push_back(first_.back() + static_cast<int32_t>(program.steps.size()));
  }
  channel_.reserve(static_cast<size_t>(first_.back()));
  std::vector<int32_t> peers;
  for (int32_t rank = 0; rank < std::ssize(plan.programs); ++rank) {
    const Program& program = plan.programs[static_cast<size_t>(rank)];
    for (int32_t index = 0; index < std::ssize(program.steps); ++index) {
      const Step& step = program.steps[static_cast<size_t>(index)];
      channel_.push_back(static_cast<int8_t>(step.channel));

      if (index > 0 && program.steps[static_cast<size_t>(index - 1)].channel == step.channel) {
        needs_.values.push_back(group(rank, index - 1));
      }
      for (int32_t w = step.first_wait; w < step.last_wait; ++w) {
        const Wait& wait = program.waits[static_cast<size_t>(w)];
        const int32_t awaited = find_step(program, wait.channel, wait.step);
        REFIT_CHECK(awaited >= 0);
        needs_.values.push_back(group(rank, awaited));
      }
      needs_.start.push_back(static_cast<int32_t>(needs_.values.size()));

      peers.clear();
      for (int32_t m = step.first_send; m < step.last_message; ++m) {
        const int32_t peer = program.messages[static_cast<size_t>(m)].peer;
        if (peer != rank) peers.push_back(peer);
      }
      std::sort(peers.begin(), peers.end());
      peers.erase(std::unique(peers.begin(), peers.end()), peers.end());
      for (const int32_t peer : peers) {
        const int32_t there =
            find_step(plan.programs[static_cast<size_t>(peer)], step.channel, step.id);
        REFIT_CHECK(there >= 0);
        partners_.values.push_back(group(peer, there));
      }
      partners_.start.push_back(static_cast<int32_t>(partners_.values.size()));
    }
  }
}

// Kahn's algorithm over the events, first come first served; clocks are advanced on the way.
void Order::sort_events() {
  const auto count = static_cast<size_t>(groups());
  position_.assign(2 * count, -1);
  clock_.assign(count, Clock{-1, -1, -1, -1});

  // What needs a group: the reverse of needs_. Partners are mutual.
  Lists followers;
  followers.start.assign(count + 1, 0);
  for (const int32_t needed : needs_.values) ++followers.start[static_cast<size_t>(needed) + 1];
  for (size_t g = 0; g < count; ++g) followers.start[g + 1] += followers.start[g];
  followers.values.resize(needs_.values.size());
  std::vector<int32_t> next(followers.start.begin(), followers.start.end() - 1);
  std::vector<int32_t> open(2 * count, 0);  // by event: unmet constraints
  for (int32_t g = 0; g < groups(); ++g) {
    for (const int32_t needed : needs(g)) {
      followers.values[static_cast<size_t>(next[static_cast<size_t>(needed)]++)] = g;
    }
    open[begin_of(g)] = static_cast<int32_t>(needs(g).size());
    open[end_of(g)] = static_cast<int32_t>(partners(g).size()) + 1;
  }

  std::vector<size_t> ready;  // grows while it is walked
  ready.reserve(2 * count);
  const auto meet = [&](size_t event) {
    if (--open[event] == 0) ready.push_back(event);
  };
  for (int32_t g = 0; g < groups(); ++g) {
    if (open[begin_of(g)] == 0) ready.push_back(begin_of(g));
  }
  for (size_t i = 0; i < ready.size(); ++i) {
    position_[ready[i]] = static_cast<int32_t>(i);
    const auto g = static_cast<int32_t>(ready[i] / 2);
    if (ready[i] == begin_of(g)) {
      Clock& clock = clock_[static_cast<size_t>(g)];
      for (const int32_t needed : needs(g)) {
        const Clock& before = clock_[static_cast<size_t>(needed)];
        for (size_t c = 0; c < clock.size(); ++c) clock[c] = std::max(clock[c], before[c]);
        int32_t& last = clock[static_cast<size_t>(channel_[static_cast<size_t>(needed)])];
        last = std::max(last, needed);
      }
      meet(end_of(g));
      for (const int32_t partner : partners(g)) meet(end_of(partner));
    } else {
      for (const int32_t follower : row(followers, g)) meet(begin_of(follower));
    }
  }
}

int32_t Order::rank_of(int32_t group) const {
  const auto after = std::upper_bound(first_.begin(), first_.end(), group);
  return static_cast<int32_t>(after - first_.begin()) - 1;
}

const Step& Order::step_of(int32_t group) const {
  const auto rank = static_cast<size_t>(rank_of(group));
  return plan_->programs[rank].steps[static_cast<size_t>(group - first_[rank])];
}

std::vector<int32_t> Order::stuck() const {
  std::vector<int32_t> result;
  for (int32_t g = 0; g < groups(); ++g) {
    if (position_[end_of(g)] < 0) result.push_back(g);
  }
  return result;
}

std::vector<int32_t> Order::begins(int32_t rank) const {
  const int32_t first = first_[static_cast<size_t>(rank)];
  std::vector<int32_t> result;
  for (int32_t g = first; g < first_[static_cast<size_t>(rank) + 1]; ++g) {
    result.push_back(g - first);
  }
  std::sort(result.begin(), result.end(), [&](int32_t a, int32_t b) {
    return position_[begin_of(first + a)] < position_[begin_of(first + b)];
  });
  return result;
}

// By the clocks: groups of one rank and channel end in ascending order.
bool Order::known(int32_t a, int32_t b) const {
  return clock_[static_cast<size_t>(b)][static_cast<size_t>(channel_[static_cast<size_t>(a)])] >= a;
}

bool Order::ends_before(int32_t a, int32_t b) const {
  const int32_t rank = rank_of(a);
  const int32_t first = first_[static_cast<size_t>(rank)];
  const int32_t last = first_[static_cast<size_t>(rank) + 1];
  const auto is_known = [&](int32_t g) { return g >= first && g < last && known(a, g); };
  if (is_known(b)) return true;

  const int32_t earliest = position_[end_of(a)];
  std::vector<size_t> todo;
  ++search_;
  const auto visit = [&](size_t event) {
    if (position_[event] < earliest || seen_[event] == search_) return;
    seen_[event] = search_;
    todo.push_back(event);
  };
  visit(begin_of(b));
  while (!todo.empty()) {
    const size_t event = todo.back();
    todo.pop_back();
    const auto g = static_cast<int32_t>(event / 2);
    if (event == end_of(g)) {
      if (g == a) return true;
      visit(begin_of(g));
      for (const int32_t partner : partners(g)) visit(begin_of(partner));
    } else {
      if (is_known(g)) return true;
      for (const int32_t needed : needs(g)) visit(end_of(needed));
    }
  }
  return false;
}

}  // namespace refit
