// relay: each atom enters an NVLink domain once, striped over the ranks there that need it, and
// fans out over NVLink. The network carries every byte once per domain instead of once per rank,
// and all network cards of a domain share it.

#include <map>

#include "sim/search/atoms.h"
#include "sim/search/chunk.h"
#include "sim/search/load.h"
#include "sim/search/parts.h"
#include "sim/search/schedule.h"
#include "sim/search/spread.h"
#include "sim/search/strategies.h"

namespace refit {
namespace {

class RelayRouter {
 public:
  explicit RelayRouter(const Problem& problem) : problem_(problem), load_(problem) {}

  Routing run() {
    for_each_atom(
        problem_, [&](int32_t tensor, const Atom& atom, const auto& remote, const auto& local) {
          const int32_t box = add_box(atom.box);
          for (const int32_t rank : local) add_hop(tensor, box, rank, rank, -1);
          std::map<int32_t, std::vector<int32_t>> by_domain;
          for (const int32_t rank : remote) by_domain[load_.domain(rank)].push_back(rank);
          const auto& holders = problem_.demand.rank_sets[static_cast<size_t>(atom.holders)];
          for (const auto& [domain, needers] : by_domain) {
            std::vector<int32_t> inside;
            for (const int32_t holder : holders) {
              if (load_.domain(holder) == domain) inside.push_back(holder);
            }
            if (inside.empty()) {
              enter_domain(tensor, atom.box, holders, needers);
            } else {
              for (const int32_t needer : needers) {
                const int64_t bytes = box_bytes(problem_, tensor, atom.box);
                send(tensor, box, load_.best_holder(inside, needer, bytes), needer, -1);
              }
            }
          }
        });
    return std::move(routing_);
  }

 private:
  int32_t add_box(const Box& box) {
    routing_.boxes.push_back(box);
    return static_cast<int32_t>(routing_.boxes.size()) - 1;
  }

  int32_t add_hop(int32_t tensor, int32_t box, int32_t from, int32_t to, int32_t parent) {
    routing_.hops.push_back(
        {.tensor = tensor, .box = box, .from = from, .to = to, .parent = parent});
    return static_cast<int32_t>(routing_.hops.size()) - 1;
  }

  int32_t send(int32_t tensor, int32_t box, int32_t from, int32_t to, int32_t parent) {
    load_.add(from, to, box_bytes(problem_, tensor, routing_.boxes[static_cast<size_t>(box)]));
    return add_hop(tensor, box, from, to, parent);
  }

  void enter_domain(int32_t tensor, const Box& box, const std::vector<int32_t>& holders,
                    const std::vector<int32_t>& needers) {
    const Dtype dtype = problem_.model.tensors[static_cast<size_t>(tensor)].dtype;
    const int64_t bytes = box_bytes(problem_, tensor, box);
    const int64_t parts = std::clamp<int64_t>(bytes / kSmallestStripe, 1, std::ssize(needers));
    std::vector<int32_t> entries = needers;  // least loaded first
    std::stable_sort(entries.begin(), entries.end(),
                     [&](int32_t a, int32_t b) { return load_.received(a) < load_.received(b); });
    size_t entry_index = 0;
    for (const Box& stripe : slice_box(box, static_cast<int32_t>(parts), dtype_bits(dtype) == 4)) {
      const int32_t entry = entries[entry_index++ % entries.size()];
      const int32_t stripe_box = add_box(stripe);
      const int32_t holder = load_.best_holder(holders, entry, box_bytes(problem_, tensor, stripe));
      const int32_t parent = send(tensor, stripe_box, holder, entry, -1);
      for (const SpreadHop& hop : spread_inside(needers, entry)) {
        send(tensor, stripe_box, hop.from, hop.to, parent + 1 + hop.parent);
      }
    }
  }

  const Problem& problem_;
  LinkLoad load_;
  Routing routing_;
};

}  // namespace

Routing route_relay(const Problem& problem) { return RelayRouter(problem).run(); }

Plan plan_relay(const Problem& problem, const SearchOptions& options) {
  return schedule_rounds(problem, route_relay(problem), options);
}

}  // namespace refit
