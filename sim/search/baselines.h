#pragma once

#include <map>
#include <vector>

#include "sim/search/choice.h"
#include "sim/search/groups.h"
#include "sim/search/script.h"

namespace refit {

// The schedules of public systems, for comparison (PEERS.md section 3 and docs/baselines.md say
// what each does). One file each, or one for a family. A baseline writes a script; what it leaves
// out of its peer stands in its file.

/// What a baseline gets, and the script that it writes.
struct Baseline {
  const Problem& problem;
  const Choice& choice;
  int64_t message = 0;           // bytes that one message may have
  std::vector<int32_t> tensors;  // that are needed and that it moves, in model order
  uint64_t seed = 0;
  Script script = {};
  std::map<std::pair<Side, int32_t>, Groups> known_groups = {};

  const std::string& option(const std::string& key) const { return choice.options.at(key); }
  std::string name() const { return choice.strategy->name; }
  /// Made once for all tensors that share a map.
  const Groups& groups(Side side, int32_t tensor) {
    const Layout& layout = side == Side::kTrain ? problem.train : problem.gen;
    const std::pair key(side, layout.tensor_map[static_cast<size_t>(tensor)]);
    const auto it = known_groups.find(key);
    if (it != known_groups.end()) return it->second;
    return known_groups[key] = make_groups(problem, side, tensor, name());
  }
  const Tensor& tensor(int32_t index) const {
    return problem.model.tensors[static_cast<size_t>(index)];
  }
  int64_t bytes(int32_t index, const Box& box) const {
    return dtype_bytes(tensor(index).dtype, box.volume());
  }
  /// From the train shard of `from` to a gen shard of `to`.
  void send(int32_t tensor, const Box& box, int32_t from, int32_t to, Turn turn) {
    script.moves.push_back({.tensor = tensor, .box = box, .from = from, .to = to, .turn = turn});
  }
};

void make_broadcast(Baseline& baseline);
void make_staged_broadcast(Baseline& baseline);
void make_relay_broadcast(Baseline& baseline);
void make_chain_broadcast(Baseline& baseline);
void make_striped(Baseline& baseline);
void make_m2n_direct(Baseline& baseline);
void make_m2n_chain(Baseline& baseline);
void make_megatron(Baseline& baseline);
void make_megatron_colored(Baseline& baseline);
void make_pull_first(Baseline& baseline);
void make_pull_balanced(Baseline& baseline);
void make_modulo(Baseline& baseline);
void make_miles(Baseline& baseline);
void make_alpa(Baseline& baseline);

/// The packed broadcast of NeMo RL for what its bulk path does not carry, on two lanes from `lane`
/// on (PEERS.md 3.1, 3.8).
void add_misc(Baseline& baseline, const std::vector<int32_t>& tensors, int32_t lane);

/// Plans with the maker, the misc part included where the strategy says so.
Plan plan_baseline(const Problem& problem, const SearchOptions& options, void (*make)(Baseline&));

template <void (*make)(Baseline&)>
Plan plan_with(const Problem& problem, const SearchOptions& options) {
  return plan_baseline(problem, options, make);
}

}  // namespace refit
