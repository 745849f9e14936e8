#include "plans/order.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace refit {

Order::Order(const Plan& plan, const Meetings& meetings) : meetings_(&meetings) {
  collect(plan);
  sort_events();
  seen_.assign(position_.size(), 0);
}

void Order::collect(const Plan& plan) {
  channel_.reserve(static_cast<size_t>(meetings_->groups()));
  needs_.start.reserve(static_cast<size_t>(meetings_->groups()) + 1);
  for (int32_t rank = 0; rank < std::ssize(plan.programs); ++rank) {
    const Program& program = plan.programs[static_cast<size_t>(rank)];
    for (int32_t index = 0; index < std::ssize(program.steps); ++index) {
      const Step& step = program.steps[static_cast<size_t>(index)];
      channel_.push_back(static_cast<int8_t>(step.channel));
      if (index > 0 && program.steps[static_cast<size_t>(index - 1)].channel == step.channel) {
        needs_.values.push_back(meetings_->group(rank, index - 1));
      }
      for (int32_t w = step.first_wait; w < step.last_wait; ++w) {
        const Wait& wait = program.waits[static_cast<size_t>(w)];
        const int32_t awaited = find_step(program, wait.channel, wait.step);
        REFIT_CHECK(awaited >= 0);
        needs_.values.push_back(meetings_->group(rank, awaited));
      }
      needs_.start.push_back(static_cast<int32_t>(needs_.values.size()));
    }
  }
}

// Kahn's algorithm over the events, first come first served, partners in order of their ranks;
// clocks are advanced on the way. Two groups that exchange two messages count twice for each other.
void Order::sort_events() {
  const auto count = static_cast<size_t>(meetings_->groups());
  position_.assign(2 * count, -1);
  clock_.assign(count, Clock{-1, -1, -1, -1});

  // What needs a group: the reverse of needs_. Who is a partner has the group as one, too.
  Lists followers;
  followers.start.assign(count + 1, 0);
  for (const int32_t needed : needs_.values) ++followers.start[static_cast<size_t>(needed) + 1];
  for (size_t g = 0; g < count; ++g) followers.start[g + 1] += followers.start[g];
  followers.values.resize(needs_.values.size());
  std::vector<int32_t> next(followers.start.begin(), followers.start.end() - 1);
  std::vector<int32_t> open(2 * count, 0);  // by event: unmet constraints
  for (int32_t g = 0; g < meetings_->groups(); ++g) {
    for (const int32_t needed : needs(g)) {
      followers.values[static_cast<size_t>(next[static_cast<size_t>(needed)]++)] = g;
    }
    open[begin_of(g)] = static_cast<int32_t>(needs(g).size());
    const std::span<const Meetings::Partner> partners = meetings_->partners(g);
    const auto to_itself = std::ranges::count(partners, g, &Meetings::Partner::group);
    open[end_of(g)] = static_cast<int32_t>(std::ssize(partners) - to_itself) + 1;
  }

  std::vector<size_t> ready;  // grows while it is walked
  ready.reserve(2 * count);
  const auto meet = [&](size_t event) {
    if (--open[event] == 0) ready.push_back(event);
  };
  // The lists of those to send to and to receive from are in order of ranks, each on its own.
  const auto meet_partners = [&](int32_t g) {
    const auto before = std::ssize(ready);
    for (const Meetings::Partner& partner : meetings_->partners(g)) {
      if (partner.group != g) meet(end_of(partner.group));
    }
    std::sort(ready.begin() + before, ready.end());
  };
  for (int32_t g = 0; g < meetings_->groups(); ++g) {
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
      meet_partners(g);
    } else {
      for (const int32_t follower : row(followers, g)) meet(begin_of(follower));
    }
  }
}

std::vector<int32_t> Order::stuck() const {
  std::vector<int32_t> result;
  for (int32_t g = 0; g < meetings_->groups(); ++g) {
    if (position_[end_of(g)] < 0) result.push_back(g);
  }
  return result;
}

std::vector<int32_t> Order::begins(int32_t rank) const {
  const int32_t first = meetings_->first_group(rank);
  std::vector<int32_t> result;
  for (int32_t g = first; g < meetings_->first_group(rank + 1); ++g) {
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
  const int32_t rank = meetings_->rank_of(a);
  const int32_t first = meetings_->first_group(rank);
  const int32_t last = meetings_->first_group(rank + 1);
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
      for (const Meetings::Partner& partner : meetings_->partners(g))
        visit(begin_of(partner.group));
    } else {
      if (is_known(g)) return true;
      for (const int32_t needed : needs(g)) visit(end_of(needed));
    }
  }
  return false;
}

}  // namespace refit
