// m2n-chain, m2n-direct: NCCL M2N (PEERS.md 3.3 to 3.5). Replica r of a side is the r-th holder of
// every shard. Load balance says which source replica serves which target replicas:
//
//   lb=uniform  counts replicas only: contiguous ranges; where there are more sources than targets,
//               the first of a range sends and the others are idle.
//   lb=node     source replica i serves all target replicas of domain i (of block i of the domains
//               when there are fewer sources); the others are idle.
//
// `m2n-direct` sends every overlap of a source shard and a target shard to every replica in range.
// `m2n-chain` sends it once, to one replica of the first domain in range, the sources spread over
// the replicas there; that one writes it to the other replicas of its domain over NVLink and passes
// it on to the replica with the same local index in the next domain: a chain of domains.
//
// One call per tensor. Calls of a communicator, which is one per training stage, are serial: stages
// run at the same time, at most four of them; inside NeMo RL (+misc) its two streams bound them to
// two, and its host handles every checkpoint parameter (PEERS.md 3.1). In a call sources take their
// targets in eight turns, each source from another one on, and what arrived in one turn is passed
// on in the next: finer than the one put and one signal for each of eight CTAs that PACK uses,
// coarser than its 256 KB ring. A block-scaled fp8 weight takes a second call for its scales: the
// benchmark's models list as many scales as fp8 weights (dsv3-toy, PEERS.md 2.3).
//
// Left out: the barrier that ends a call, as messages (it is part of the host's cost of a call);
// the split communicators and their injection replicas; the one-domain host-put path.

#include <fmt/core.h>

#include <algorithm>
#include <map>

#include "base/error.h"
#include "sim/search/baselines.h"

namespace refit {
namespace {

constexpr int32_t kTurns = 8;        // of the sources of a call
constexpr size_t kMostSources = 16;  // of a target shard; of a receiver with direct: twice as many
constexpr size_t kMostTargets = 64;  // of a source shard

class M2nCaller {
 public:
  M2nCaller(Baseline& baseline, bool chain)
      : baseline_(baseline),
        stages_(baseline.problem),
        chain_(chain),
        by_node_(baseline.option("lb") == "node"),
        lanes_(baseline.choice.misc ? 2 : kMaxChannels),
        next_(static_cast<size_t>(lanes_), 0) {}

  void run() {
    for (const int32_t tensor : baseline_.tensors) call(tensor);
  }

 private:
  struct Replicas {
    std::vector<Box> shards;
    std::vector<std::vector<int32_t>> ranks;  // by shard, then replica
    size_t count = 0;                         // of replicas
  };
  struct Range {  // target replicas of a source replica
    size_t source = 0;
    std::vector<size_t> targets;
  };
  struct Put {
    size_t shard = 0;  // of the target
    Box box;
    int32_t from = -1, to = -1;
    const std::vector<std::vector<size_t>>* domains = nullptr;  // of the source replica's range
  };

  [[noreturn]] void refuse(int32_t tensor, const std::string& found, const std::string& expected) {
    throw Error(fmt::format("{}: {}: found {}, expected {}", baseline_.name(),
                            baseline_.tensor(tensor).name, found, expected),
                ErrorKind::kWork);
  }

  Replicas find_replicas(Side side, int32_t tensor) {
    const char* name = side == Side::kTrain ? "train" : "gen";
    Replicas result;
    for (const auto& [box, members] : baseline_.groups(side, tensor)) {
      result.shards.push_back(box);
      result.ranks.push_back(members);
      result.count = members.size();
    }
    const Box& first = result.shards.front();
    int cut_dims = 0;
    for (int d = 0; d < first.dims(); ++d) {
      cut_dims += first.extent(d) != baseline_.tensor(tensor).shape[d];
    }
    if (cut_dims > 1) {
      refuse(tensor, fmt::format("{} dimensions cut on the {} side", cut_dims, name), "one");
    }
    for (size_t s = 0; s < result.shards.size(); ++s) {
      if (result.shards[s].extents() != first.extents()) {
        refuse(tensor, fmt::format("uneven shards on the {} side", name), "even ones");
      }
      if (result.ranks[s].size() != result.count) {
        refuse(tensor, fmt::format("shards with unequal replicas on the {} side", name),
               "a mesh of replicas and shards");
      }
    }
    return result;
  }

  int32_t domain(int32_t rank) const { return domain_of(baseline_.problem, rank); }

  /// Contiguous blocks, the first ones longer by one where it does not divide.
  static size_t block_of(size_t index, size_t count, size_t blocks) {
    const size_t base = count / blocks, longer = count % blocks;
    if (index < longer * (base + 1)) return index / (base + 1);
    return longer + (index - longer * (base + 1)) / base;
  }

  std::vector<Range> balance(const Replicas& sources, const Replicas& targets) const {
    std::vector<Range> ranges(sources.count);
    for (size_t r = 0; r < sources.count; ++r) ranges[r].source = r;
    if (by_node_) {
      std::vector<int32_t> domains;
      for (const auto& ranks : targets.ranks) {
        for (const int32_t rank : ranks) domains.push_back(domain(rank));
      }
      std::sort(domains.begin(), domains.end());
      domains.erase(std::unique(domains.begin(), domains.end()), domains.end());
      for (size_t r = 0; r < targets.count; ++r) {
        const auto at = static_cast<size_t>(
            std::lower_bound(domains.begin(), domains.end(), domain(targets.ranks[0][r])) -
            domains.begin());
        const size_t source =
            sources.count >= domains.size() ? at : block_of(at, domains.size(), sources.count);
        ranges[source].targets.push_back(r);
      }
    } else if (sources.count > targets.count) {
      std::vector<bool> served(targets.count, false);
      for (size_t s = 0; s < sources.count; ++s) {
        const size_t target = block_of(s, sources.count, targets.count);
        if (!served[target]) ranges[s].targets.push_back(target);
        served[target] = true;
      }
    } else {
      for (size_t r = 0; r < targets.count; ++r) {
        ranges[block_of(r, targets.count, sources.count)].targets.push_back(r);
      }
    }
    return ranges;
  }

  void call(int32_t tensor) {
    const Replicas sources = find_replicas(Side::kTrain, tensor);
    const Replicas targets = find_replicas(Side::kGen, tensor);
    const int32_t lane = stages_.of(tensor) % lanes_;
    const Turn first{lane, next_[static_cast<size_t>(lane)]};
    std::vector<Put> puts;
    std::vector<std::vector<std::vector<size_t>>> domains;  // by source replica: replicas by domain
    const std::vector<Range> ranges = balance(sources, targets);
    domains.reserve(ranges.size());
    for (const Range& range : ranges) {
      domains.push_back(group_by_domain(range, targets));
      for (size_t d = 0; d < targets.shards.size(); ++d) {
        add_puts(sources, targets, range, d, domains.back(), puts);
      }
    }
    expect_limits(tensor, puts);
    std::map<int32_t, int32_t> turns;  // by source: the next one; they begin at different targets
    int32_t end = first.batch + 1;
    for (const Put& put : puts) {
      const int32_t at =
          turns.try_emplace(put.from, put.from + 2 * stages_.of(tensor)).first->second++ % kTurns;
      const Turn turn{lane, first.batch + at};
      baseline_.send(tensor, put.box, put.from, put.to, turn);
      end = std::max(end, turn.batch + 1);
      if (chain_) end = std::max(end, pass_on(tensor, targets, put, turn));
    }
    next_[static_cast<size_t>(lane)] = end;
    const Tensor& t = baseline_.tensor(tensor);
    const bool scaled = t.ffn || t.shape.count > 1;
    const bool fp8 = t.dtype == Dtype::kFp8E4m3 || t.dtype == Dtype::kFp8E5m2;
    baseline_.script.host.push_back(
        {first, baseline_.choice.misc ? static_cast<double>(count_parameters(t)) : 0,
         fp8 && scaled ? 2.0 : 1.0});
  }

  std::vector<std::vector<size_t>> group_by_domain(const Range& range,
                                                   const Replicas& targets) const {
    std::vector<std::vector<size_t>> groups;
    int32_t last = -1;
    for (const size_t r : range.targets) {
      const int32_t d = domain(targets.ranks[0][r]);
      if (groups.empty() || d != last) groups.emplace_back();
      groups.back().push_back(r);
      last = d;
    }
    return groups;
  }

  void add_puts(const Replicas& sources, const Replicas& targets, const Range& range, size_t d,
                const std::vector<std::vector<size_t>>& domains, std::vector<Put>& puts) const {
    if (range.targets.empty()) return;
    std::vector<size_t> overlapping;
    for (size_t s = 0; s < sources.shards.size(); ++s) {
      if (!intersect(sources.shards[s], targets.shards[d]).empty()) overlapping.push_back(s);
    }
    for (size_t p = 0; p < overlapping.size(); ++p) {
      const size_t s = overlapping[p];
      const Box box = intersect(sources.shards[s], targets.shards[d]);
      const int32_t from = sources.ranks[s][range.source];
      if (!chain_) {
        for (const size_t r : range.targets) {
          puts.push_back({d, box, holder(sources, s, targets.ranks[d][r], from),
                          targets.ranks[d][r], nullptr});
        }
        continue;
      }
      const std::vector<size_t>& local = domains.front();
      const int32_t leader = targets.ranks[d][local[block_of(p, overlapping.size(), local.size())]];
      puts.push_back({d, box, holder(sources, s, leader, from), leader, &domains});
    }
  }

  void expect_limits(int32_t tensor, const std::vector<Put>& puts) {
    std::map<int32_t, size_t> targets;                     // by source rank
    std::map<std::pair<size_t, int32_t>, size_t> sources;  // by target shard and rank
    const size_t most = chain_ ? kMostSources : 2 * kMostSources;
    for (const Put& put : puts) {
      if (++targets[put.from] > kMostTargets) {
        refuse(tensor, fmt::format("more than {} targets of rank {}", kMostTargets, put.from),
               "no more (reshard_limits.h)");
      }
      if (++sources[{put.shard, put.to}] > most) {
        refuse(tensor, fmt::format("more than {} sources for rank {}", most, put.to),
               "no more (reshard_limits.h)");
      }
    }
  }

  /// A receiver that holds the shard copies it.
  static int32_t holder(const Replicas& sources, size_t shard, int32_t to, int32_t from) {
    return has_rank(sources.ranks[shard], to) ? to : from;
  }

  /// From the leader of the first domain to all others; returns the batch after the last.
  int32_t pass_on(int32_t tensor, const Replicas& targets, const Put& put, Turn turn) {
    const auto& ranks = targets.ranks[put.shard];
    size_t slot = 0;
    int32_t leader = put.to;
    for (size_t k = 0; k < put.domains->size(); ++k) {
      const std::vector<size_t>& local = (*put.domains)[k];
      if (k == 0) {
        while (ranks[local[slot]] != leader) ++slot;
      } else {
        slot = std::min(slot, local.size() - 1);
        ++turn.batch;
        forward(tensor, put.box, leader, ranks[local[slot]], turn);
        leader = ranks[local[slot]];
      }
      for (const size_t r : local) {
        if (ranks[r] == leader) continue;
        forward(tensor, put.box, leader, ranks[r], {turn.lane, turn.batch + 1});
      }
      if (local.size() > 1 && k + 1 == put.domains->size()) ++turn.batch;
    }
    return turn.batch + 1;
  }

  void forward(int32_t tensor, const Box& box, int32_t from, int32_t to, Turn turn) {
    baseline_.script.moves.push_back({.tensor = tensor,
                                      .box = box,
                                      .from = from,
                                      .to = to,
                                      .turn = turn,
                                      .source = Place::kGen});
  }

  Baseline& baseline_;
  const TrainStages stages_;
  const bool chain_, by_node_;
  const int32_t lanes_;
  std::vector<int32_t> next_;  // by lane: batch
};

}  // namespace

void make_m2n_direct(Baseline& baseline) { M2nCaller(baseline, false).run(); }

void make_m2n_chain(Baseline& baseline) { M2nCaller(baseline, true).run(); }

}  // namespace refit
