#pragma once

#include <string>
#include <vector>

#include "plans/plan.h"
#include "plans/plan_io.h"

namespace refit {

// Judges a plan without the search that made it. A plan that passes moves every element to every
// place that wants it, in any execution that keeps the rules of plan.h:
//
//   form       indices, boxes, peers, limits on channels, peers per step and staging are as the
//              format says
//   pairing    sends and receives match per (from, to, channel, step): same boxes, same order, same
//              wire dtype
//   progress   no cycle over (rank, channel, step), when a group ends as a whole and no send is
//              eager
//   holding    a piece is read only from an area that holds the right elements by then, in every
//              order that the waits allow
//   delivery   every element of every gen shard is written exactly once, with the right element
//   staging    what a slot still has to give is never overwritten, whatever order the waits allow;
//              the bound holds
//
// What a step sends may be read from its begin to its end, what it receives is in place at its end
// and undefined from its begin on (as with MPI_Isend and MPI_Irecv). What is staged through a slot
// is read through that slot. Also of form: every step has messages, waits are on other channels,
// `nvlink` channels stay within NVLink domains (`net` ones may not), gen shards do not share
// memory. Values are cast at most once, from train to gen dtype: pieces of quantised weights and of
// their companions by the sender, from whole blocks in one of its areas, other pieces at either
// end.
//
// "By then" is happens-before: b begins after a ended in every execution. Within a rank it follows
// from channel order and waits; where these do not show it, from chains through other ranks. Linear
// in the plan but for those chains.

/// One reason why a plan is wrong. Where a number does not apply it is -1.
struct Fault {
  enum class Rule { kForm, kPairing, kProgress, kHolding, kDelivery, kStaging };
  Rule rule = Rule::kForm;
  int32_t rank = -1, channel = -1, step = -1;
  std::string what;  // one line, names tensor and box where they apply
};

std::string print_fault(const Fault& fault);

/// The faults found, at most `most` of each rule, in a fixed order; empty when the plan is right.
std::vector<Fault> check(const Plan& plan, int most = 8);

/// The same for a plan as load_plan returned it, which has seen to it that it is well-formed: it is
/// not looked at again for that.
std::vector<Fault> check(const LoadedPlan& loaded, int most = 8);

}  // namespace refit
