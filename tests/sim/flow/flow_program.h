#pragma once

#include <span>
#include <vector>

#include "sim/fabric/fabric.h"
#include "sim/flow/multicast.h"

namespace refit::testing {

/// The least time of a multicast when data may be coded on its way: the linear program
///
///     min T    with for every class b and every d in D_b a flow f(b, d) of 1 from S_b to d,
///     f(b, d) <= y(b) on every hop, and sum over b and hops over link e of w_b y(b) <= T c_e,
///
/// solved by Clp. Hops are those that list_routes gives, from GPU to GPU; GPUs copy, switches do
/// not. Every tree routing is one of its points, so that T is at most that of the program of
/// sim/flow/multicast.h. Infinite when some GPU cannot be reached. For small cases: it has a
/// variable for each class, needer and hop.
double flow_program(const Fabric& fabric, std::span<const double> rates,
                    std::span<const Multicast> items);

}  // namespace refit::testing
