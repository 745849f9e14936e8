#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "plans/check.h"
#include "plans/meetings.h"
#include "plans/order.h"
#include "plans/plan.h"

namespace refit {

// The rules of `check`, one function each. Internal to plans/.

/// Keeps the first faults of each rule.
class Faults {
 public:
  explicit Faults(int most) : most_(static_cast<size_t>(most < 1 ? 1 : most)) {}
  void add(Fault::Rule rule, int32_t rank, const Step* step, std::string what);
  bool full(Fault::Rule rule) const { return list(rule).size() >= most_; }
  bool empty(Fault::Rule rule) const { return list(rule).empty(); }
  std::vector<Fault> all() const;  // by rule

 private:
  const std::vector<Fault>& list(Fault::Rule rule) const {
    return faults_[static_cast<size_t>(rule)];
  }
  size_t most_;
  std::array<std::vector<Fault>, 6> faults_;
};

/// "[0:4, 0:8] of 'model.norm.weight'".
std::string print_piece(const Plan& plan, int32_t tensor, const Box& box);

/// Form, beyond being well-formed (plans/form.h): limits, lanes, order of peers, waits, and gen
/// shards that do not overlap in memory. And the bound on staging.
void check_limits(const Plan& plan, Faults& faults);

/// Pairing: each end of a transfer has the other one.
void check_pairing(const Plan& plan, const Meetings& meetings, Faults& faults);

/// Progress.
void check_progress(const Plan& plan, const Meetings& meetings, const Order& order, Faults& faults);

/// Delivery: every gen shard is written exactly once.
void check_delivery(const Plan& plan, Faults& faults);

/// Holding and staging. A step may read what it sends from its begin to its end, and what it
/// receives is in place at its end and undefined from its begin on. What is staged through a slot
/// is read through that slot.
void check_memory(const Plan& plan, const Meetings& meetings, const Order& order, Faults& faults);

}  // namespace refit
