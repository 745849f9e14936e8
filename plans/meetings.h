#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "plans/plan.h"

namespace refit {

/// Who meets whom: the two ends of a transfer stand in steps of equal channel and id. A group is
/// one step of one rank; groups are numbered by rank, then as in Program::steps.
class Meetings {
 public:
  /// Peers need not exist, nor have such a step. Linear where ids are dense, as planned ones are.
  explicit Meetings(const Plan& plan);

  int32_t group(int32_t rank, int32_t step_index) const {
    return first_[static_cast<size_t>(rank)] + step_index;
  }
  int32_t groups() const { return first_.back(); }
  int32_t ranks() const { return static_cast<int32_t>(first_.size()) - 1; }
  int32_t first_group(int32_t rank) const { return first_[static_cast<size_t>(rank)]; }

  /// All groups in order of (channel, step id, rank). What meets lies side by side, and so does
  /// what runs at about the same time: whoever goes through large plans in this order finds his
  /// data in the cache.
  std::span<const int32_t> in_order() const { return in_order_; }
  int32_t rank_of(int32_t group) const { return rank_[static_cast<size_t>(group)]; }

  /// Messages are numbered by group, in each sends first: the other end of one.
  struct Partner {
    int32_t group = -1;    // that of its peer (of the rank itself: its own), -1: has no such step
    int32_t message = -1;  // number there; -1: none in the other direction
  };
  /// By message of the step, from first_send on.
  std::span<const Partner> partners(int32_t group) const {
    return std::span(partners_).subspan(first_message(group),
                                        first_message(group + 1) - first_message(group));
  }
  size_t first_message(int32_t group) const { return start_[static_cast<size_t>(group)]; }

 private:
  void put_in_order(const Plan& plan);
  void find_partners(const Plan& plan);

  std::vector<int32_t> first_;  // by rank, one more at the end
  std::vector<int32_t> rank_;   // by group
  std::vector<int32_t> in_order_;
  std::vector<int32_t> meeting_;   // where each (channel, step id) starts in in_order_, and the end
  std::vector<size_t> start_;      // by group, one more at the end
  std::vector<Partner> partners_;  // by message
};

/// The step of a group; the other end of a message, or null.
const Step& find_step(const Plan& plan, const Meetings& meetings, int32_t group);
const Message* find_message(const Plan& plan, const Meetings& meetings,
                            const Meetings::Partner& partner);

}  // namespace refit
