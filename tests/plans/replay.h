#pragma once

#include <string>

#include "plans/plan.h"
#include "random_plan.h"

namespace refit {

// The oracle of `check`: runs a small plan on memory made of single elements, in many orders, and
// looks at what happens.
//
// Rules of the machine. A step begins when the one before it on its channel and those that it waits
// for have ended; it ends when every rank that it exchanges a message with has begun the step that
// holds the other end. From its begin to its end a step's sources may be read at any time and its
// destinations hold garbage; at its end they hold what was sent (as with MPI_Isend and MPI_Irecv).
// So a run goes wrong when a step begins whose source is not right, when a source turns to garbage
// under a running step, and when two running steps write one element, which then stays garbage. A
// slot's elements are told apart from those that another slot left in the same bytes.
//
// A plan is wrong when some run gets stuck, reads garbage, receives something else than it expects,
// or leaves an element of a gen shard unwritten or written twice; or, by definition, when it breaks
// the limits of the format: an area that the piece is not part of, a peer twice in one step, a wait
// on its own channel, more staging than allowed.

/// Why the plan is wrong, or "" when all tried orders were right. Orders tried: for every step one
/// in which it begins as early as it can and ends as late as it can, and some at random.
std::string find_wrong_run(const Plan& plan, Random& random);

}  // namespace refit
