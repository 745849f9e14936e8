#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "sim/search/parts.h"
#include "sim/search/search.h"

namespace refit {

/// Regions of a tensor on one side, each with the ranks that hold (need) it, ascending. The k-th
/// member of every region makes up replica k.
using Groups = std::map<Box, std::vector<int32_t>>;

/// Fails when regions overlap without being equal (redundant experts): no peer serves that. `place`
/// names who asks.
Groups make_groups(const Problem& problem, Side side, int32_t tensor, const std::string& place);

/// Do the members include the rank?
bool has_rank(const std::vector<int32_t>& members, int32_t rank);

/// Runs of elements that are contiguous both in a dense row-major buffer of `a` and in one of `b`,
/// in which a common sub-box lies.
int64_t count_runs(const Box& part, const Box& a, const Box& b);

/// Pipeline stages, told by their ranks, numbered in order of the first tensor they hold.
class TrainStages {
 public:
  explicit TrainStages(const Problem& problem);
  int32_t count() const { return static_cast<int32_t>(ranks_.size()); }
  int32_t of(int32_t tensor) const { return stage_[static_cast<size_t>(tensor)]; }
  const std::vector<int32_t>& ranks(int32_t stage) const {
    return ranks_[static_cast<size_t>(stage)];
  }

 private:
  std::vector<int32_t> stage_;  // by tensor
  std::vector<std::vector<int32_t>> ranks_;
};

/// A hop of a tree from its root; `depth` of the first hops is 0.
struct Leg {
  int32_t from = -1, to = -1;
  int32_t depth = 0;
};

/// How NCCL's rings carry a broadcast, as to who loads what: one copy into every NVLink domain,
/// from domain to domain by the NIC of one member (number `turn`, so that rings of different turns
/// use different NICs), and on over NVLink, where a member passes on to four others so that the
/// tree stays flat. Members without the root; parents come first.
std::vector<Leg> make_tree(const Problem& problem, int32_t root,
                           const std::vector<int32_t>& members, int32_t turn);

/// Checkpoint parameters in a tensor: an expert's weight is one.
int64_t count_parameters(const Tensor& tensor);

}  // namespace refit
