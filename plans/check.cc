#include "plans/check.h"

#include <fmt/core.h>

#include <string_view>
#include <utility>

#include "plans/form.h"
#include "plans/order.h"
#include "plans/rules.h"

namespace refit {
namespace {

std::string_view rule_name(Fault::Rule rule) {
  switch (rule) {
    case Fault::Rule::kForm:
      return "form";
    case Fault::Rule::kPairing:
      return "pairing";
    case Fault::Rule::kProgress:
      return "progress";
    case Fault::Rule::kHolding:
      return "holding";
    case Fault::Rule::kDelivery:
      return "delivery";
    case Fault::Rule::kStaging:
      return "staging";
  }
  return "";
}

// Is the plan safe to walk?
bool is_well_formed(const Plan& plan, Faults& faults) {
  if (plan.programs.size() != plan.ranks.size()) {
    faults.add(Fault::Rule::kForm, -1, nullptr,
               fmt::format("{} programs for {} ranks", plan.programs.size(), plan.ranks.size()));
    return false;
  }
  std::string what = find_malformed(plan);
  if (!what.empty()) {
    faults.add(Fault::Rule::kForm, -1, nullptr, what);
    return false;
  }
  for (int32_t rank = 0; rank < std::ssize(plan.programs); ++rank) {
    what = find_malformed(plan, rank);
    if (!what.empty()) faults.add(Fault::Rule::kForm, rank, nullptr, what);
  }
  return faults.empty(Fault::Rule::kForm);
}

}  // namespace

void Faults::add(Fault::Rule rule, int32_t rank, const Step* step, std::string what) {
  if (full(rule)) return;
  Fault fault{rule, rank, -1, -1, std::move(what)};
  if (step != nullptr) {
    fault.channel = step->channel;
    fault.step = step->id;
  }
  faults_[static_cast<size_t>(rule)].push_back(std::move(fault));
}

std::vector<Fault> Faults::all() const {
  std::vector<Fault> result;
  for (const std::vector<Fault>& rule : faults_) {
    result.insert(result.end(), rule.begin(), rule.end());
  }
  return result;
}

std::string print_fault(const Fault& fault) {
  std::string place(rule_name(fault.rule));
  if (fault.rank >= 0) place += fmt::format(": rank {}", fault.rank);
  if (fault.channel >= 0) place += fmt::format(", channel {}", fault.channel);
  if (fault.step >= 0) place += fmt::format(", step {}", fault.step);
  return place + ": " + fault.what;
}

std::string print_piece(const Plan& plan, int32_t tensor, const Box& box) {
  return fmt::format("{} of '{}'", print_box(box), plan.tensors[static_cast<size_t>(tensor)].name);
}

namespace {

std::vector<Fault> check_well_formed(const Plan& plan, Faults& faults) {
  check_limits(plan, faults);
  check_delivery(plan, faults);
  if (!faults.empty(Fault::Rule::kForm)) return faults.all();
  const Meetings meetings(plan);
  check_pairing(plan, meetings, faults);
  if (!faults.empty(Fault::Rule::kPairing)) return faults.all();
  const Order order(plan, meetings);
  check_progress(plan, meetings, order, faults);
  if (faults.empty(Fault::Rule::kProgress)) check_memory(plan, meetings, order, faults);
  return faults.all();
}

}  // namespace

std::vector<Fault> check(const Plan& plan, int most) {
  Faults faults(most);
  return is_well_formed(plan, faults) ? check_well_formed(plan, faults) : faults.all();
}

std::vector<Fault> check(const LoadedPlan& loaded, int most) {
  Faults faults(most);
  return check_well_formed(loaded.plan, faults);
}

}  // namespace refit
