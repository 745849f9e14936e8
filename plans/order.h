#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "plans/meetings.h"
#include "plans/plan.h"

namespace refit {

// What comes before what in every execution of a plan. A group is one step of one rank; it has two
// events:
//
//   begin(g)  after the end of the step before it on its channel and of the steps that it waits
//   for, end(g)    after begin(g) and after begin(p) of every partner p: the step of equal channel
//   and id on a rank that g
//             exchanges a message with (a step ends as a whole, and no send is eager).
//
// These are all the constraints there are: every order of the events that keeps them is a possible
// execution. So a plan makes progress exactly when they have no cycle, and a is over before b
// begins in every execution exactly when a path leads from end(a) to begin(b).

class Order {
 public:
  /// The plan is well-formed, its waits and messages have their counterparts. Linear. The meetings
  /// are those of the plan, and have to outlive this.
  Order(const Plan& plan, const Meetings& meetings);

  /// Groups that never end, ascending. With none of them, the rest below may be asked.
  std::vector<int32_t> stuck() const;

  /// Step indices of a rank's groups in an order in which they may begin.
  std::vector<int32_t> begins(int32_t rank) const;

  /// Place of a group among all in one possible execution, by begin.
  int32_t position(int32_t group) const { return position_[begin_of(group)]; }

  /// Is `a` over before `b` begins, in every execution? Constant time when the channel order and
  /// the waits of their rank show it, else a search backwards from `b` through the events that come
  /// after `a`.
  bool ends_before(int32_t a, int32_t b) const;

 private:
  using Clock = std::array<int32_t, kMaxChannels>;  // by channel: the last group of the rank known
                                                    // to have ended, or -1

  static size_t begin_of(int32_t group) { return 2 * static_cast<size_t>(group); }
  static size_t end_of(int32_t group) { return 2 * static_cast<size_t>(group) + 1; }
  std::span<const int32_t> needs(int32_t group) const { return row(needs_, group); }

  // Lists of groups, one per group, end to end.
  struct Lists {
    std::vector<int32_t> start = {0};
    std::vector<int32_t> values;
  };
  static std::span<const int32_t> row(const Lists& lists, int32_t group) {
    const auto g = static_cast<size_t>(group);
    return std::span(lists.values)
        .subspan(static_cast<size_t>(lists.start[g]),
                 static_cast<size_t>(lists.start[g + 1] - lists.start[g]));
  }

  void collect(const Plan& plan);
  void sort_events();
  bool known(int32_t a, int32_t b) const;

  const Meetings* meetings_;
  std::vector<int8_t> channel_;         // by group
  Lists needs_;                         // by group: of the same rank, to end before it begins
  std::vector<int32_t> position_;       // by event, in one possible execution; -1: never happens
  std::vector<Clock> clock_;            // by group, at its begin
  mutable std::vector<uint32_t> seen_;  // by event: number of the search that last came by
  mutable uint32_t search_ = 0;
};

}  // namespace refit
