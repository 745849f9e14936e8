// modulo: awex (PEERS.md 3.12). Replica i of what is needed is served by replica i mod n of what is
// held, the same for every parameter; all pairs of overlapping shards go in one batch of sends and
// receives. Nothing is chosen by load or by place.
//
// Left out: the converter that renames parameters, and the streaming of batches when colocated.

#include "sim/search/baselines.h"

namespace refit {

void make_modulo(Baseline& baseline) {
  for (const int32_t tensor : baseline.tensors) {
    const Groups& sources = baseline.groups(Side::kTrain, tensor);
    for (const auto& [box, members] : baseline.groups(Side::kGen, tensor)) {
      for (size_t replica = 0; replica < members.size(); ++replica) {
        for (const auto& [region, holders] : sources) {
          const Box part = intersect(region, box);
          if (part.empty()) continue;
          const int32_t to = members[replica];
          const int32_t from = has_rank(holders, to) ? to : holders[replica % holders.size()];
          baseline.send(tensor, part, from, to, {});
        }
      }
    }
  }
}

}  // namespace refit
