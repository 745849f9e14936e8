// broadcast, relay-broadcast, staged-broadcast, chain-broadcast, and the packed broadcast of +misc:
// whole tensors are gathered on a root, packed into buffers, broadcast to every gen rank, and cut
// there to what the rank needs (PEERS.md 3.1, 3.8, 3.9, 3.10).
//
//   broadcast         vLLM, verl `nccl`: training rank 0 and the gen ranks form the group: one
//                     network card sends.
//   relay-broadcast   verl `multi_sender`: the training ranks of the root's domain join and drop
//                     the payload; so rings leave through all their network cards.
//   staged-broadcast  slime: a root per pipeline stage; a lock lets one bucket of 512 MB on the
//                     wire at a time; experts after all the rest.
//   chain-broadcast   verl `nixl` and `mooncake`: root to gen rank to gen rank, bucket by bucket,
//                     store and forward.
//   +misc             NeMo RL: as relay-broadcast, since its group includes the training ranks.
//
// Tensors are cut into cells; a cell passes from hop to hop, one batch each, behind the one before
// it: the pipeline that NCCL has inside a collective, with coarser chunks. Two lanes take turns, as
// the peers' two buffers do. The gather enters the root's domain by the network cards of all its
// training ranks. The host handles every checkpoint parameter of a cell.
//
// Left out: the copies of the gather on training ranks other than the root; slime's polling of its
// lock (0.1 s) and conversion; buffers larger than the staging bound.

#include <algorithm>

#include "sim/search/baselines.h"
#include "sim/search/chunk.h"

namespace refit {
namespace {

constexpr size_t kRings = 8;  // of NCCL that leave through different network cards
constexpr int64_t kBucketBytes = 512'000'000;
constexpr int32_t kGather = 2;      // batches: into the root's domain, to the root
constexpr int32_t kHalves = 2;      // of a lane's buffer: one fills while the other is passed on
constexpr size_t kMostParts = 64;   // of a cell
constexpr int64_t kAlignment = 16;  // of a part in a cell, bytes
constexpr int64_t kSlack = kMostParts * kAlignment;

struct CellPart {
  int32_t tensor;
  Box box;
};

struct Cell {
  std::vector<CellPart> parts;
  int64_t bytes = 0;
  double parameters = 0;
};

/// Tensors in cells of at most `most` bytes: large ones alone, so that nothing packs them again.
std::vector<Cell> cut_cells(const Baseline& baseline, const std::vector<int32_t>& tensors,
                            int64_t most) {
  std::vector<Cell> cells;
  for (const int32_t tensor : tensors) {
    const Tensor& t = baseline.tensor(tensor);
    const int64_t bits = dtype_bits(t.dtype);
    const auto all = static_cast<double>(tensor_bytes(t));
    std::vector<Box> todo = {whole(t.shape)};
    while (!todo.empty()) {
      const Cutting cutting = cut_box(todo.back(), most * 8 / bits, bits == 4);
      todo.pop_back();
      todo.insert(todo.end(), cutting.left.rbegin(), cutting.left.rend());
      for (const Box& taken : cutting.taken) {
        const int64_t bytes = baseline.bytes(tensor, taken);
        if (cells.empty() || bytes > most / 4 || cells.back().bytes + bytes > most ||
            cells.back().parts.size() == kMostParts) {
          cells.emplace_back();
        }
        Cell& cell = cells.back();
        cell.parts.push_back({tensor, taken});
        cell.bytes += bytes;
        cell.parameters +=
            static_cast<double>(count_parameters(t)) * static_cast<double>(bytes) / all;
      }
    }
  }
  return cells;
}

enum class Spread { kTree, kChain };

class Broadcaster {
 public:
  /// Lanes `lane` .. `lane` + lanes - 1.
  Broadcaster(Baseline& baseline, int32_t lane, int32_t lanes, Spread spread)
      : baseline_(baseline), lane_(lane), lanes_(lanes), spread_(spread) {}

  /// Broadcasts the tensors from `root`, by a ring through each of the relays (ranks of the root's
  /// domain, the root itself among them).
  void run(const std::vector<int32_t>& tensors, int32_t root, const std::vector<int32_t>& relays) {
    const auto rings = static_cast<int64_t>(relays.size());
    const int64_t most = std::max<int64_t>(baseline_.message / rings, 1);
    cell_bytes_ = std::max(cell_bytes_, most);
    root_ = root;
    relays_ = relays;
    local_.clear();
    for (const int32_t rank : baseline_.problem.train.ranks) {
      if (domain_of(baseline_.problem, rank) == domain_of(baseline_.problem, root)) {
        local_.push_back(rank);
      }
    }
    std::vector<Cell> cells = cut_cells(baseline_, tensors, most);
    for (size_t c = 0; c < cells.size(); ++c) {
      const auto ring = static_cast<int64_t>(c) % rings;
      if (ring == 0 && c > 0) ++sequence_;
      send_cell(cells[c], ring, rings);
    }
    ++sequence_;
  }

  /// Lets everything that is under way end before what follows begins.
  void drain() { sequence_ = (end_ + 1) * lanes_; }

 private:
  struct Staged {
    std::vector<int32_t> slots;  // by part of the cell
    int32_t since = 0;           // batch after the one that brought it
  };

  /// Gathers, broadcasts and cuts one cell.
  void send_cell(const Cell& cell, int64_t ring, int64_t rings) {
    turn_ = {lane_ + sequence_ % lanes_, sequence_ / lanes_};
    offset_ = ((turn_.batch % kHalves * lanes_ + sequence_ % lanes_) * rings + ring) *
              (cell_bytes_ + kSlack);
    baseline_.script.host.push_back({turn_, cell.parameters, 0});
    std::map<int32_t, Staged> held;
    held[root_] = {gather(cell, ring, rings), turn_.batch + kGather};
    const int32_t relay = relays_[static_cast<size_t>(ring)];
    int32_t from = root_, depth = 0;
    if (relay != root_) {
      pass(cell, held, {root_, relay, depth++});
      from = relay;
    }
    const std::vector<int32_t>& gen = baseline_.problem.gen.ranks;
    std::vector<int32_t> members;
    for (const int32_t rank : gen) {
      if (!held.contains(rank)) members.push_back(rank);
    }
    if (spread_ == Spread::kChain) {
      for (const int32_t member : members) {
        pass(cell, held, {from, member, depth++});
        from = member;
      }
    } else {
      for (const Leg& leg :
           make_tree(baseline_.problem, from, members, static_cast<int32_t>(ring))) {
        pass(cell, held, {leg.from, leg.to, depth + leg.depth});
      }
    }
    for (const int32_t rank : gen) unpack(cell, rank, held.at(rank));
  }

  std::vector<int32_t> stage(const Cell& cell, int32_t rank, int64_t offset) {
    std::vector<int32_t> slots;
    for (const CellPart& part : cell.parts) {
      slots.push_back(baseline_.script.add_slot({rank, part.tensor, part.box, offset}));
      offset += (baseline_.bytes(part.tensor, part.box) + kAlignment - 1) / kAlignment * kAlignment;
    }
    return slots;
  }

  /// Every part from a holder into the root's buffer, by a training rank of its domain, which has a
  /// buffer of its own for that.
  std::vector<int32_t> gather(const Cell& cell, int64_t ring, int64_t rings) {
    const std::vector<int32_t> slots = stage(cell, root_, offset_);
    const int64_t behind = kHalves * lanes_ * rings * (cell_bytes_ + kSlack);
    const int32_t relay = local_[static_cast<size_t>(sequence_ + ring) % local_.size()];
    std::vector<int32_t> relay_slots;
    for (size_t p = 0; p < cell.parts.size(); ++p) {
      const CellPart& part = cell.parts[p];
      for (const auto& [region, holders] : baseline_.groups(Side::kTrain, part.tensor)) {
        const Box box = intersect(region, part.box);
        if (box.empty()) continue;
        const int32_t holder = nearest(holders);
        const bool far =
            domain_of(baseline_.problem, holder) != domain_of(baseline_.problem, root_);
        if (far && relay != root_) {
          if (relay_slots.empty()) relay_slots = stage(cell, relay, behind + offset_);
          add(part.tensor, box, holder, relay, -1, relay_slots[p], turn_.batch);
          add(part.tensor, box, relay, root_, relay_slots[p], slots[p], turn_.batch + 1);
        } else {
          add(part.tensor, box, holder, root_, -1, slots[p], turn_.batch + 1);
        }
      }
    }
    return slots;
  }

  /// The root, else a holder in its domain, else one after the other.
  int32_t nearest(const std::vector<int32_t>& holders) const {
    if (has_rank(holders, root_)) return root_;
    for (const int32_t holder : holders) {
      if (domain_of(baseline_.problem, holder) == domain_of(baseline_.problem, root_)) {
        return holder;
      }
    }
    return holders[static_cast<size_t>(sequence_) % holders.size()];
  }

  void pass(const Cell& cell, std::map<int32_t, Staged>& held, Leg leg) {
    const int32_t batch = turn_.batch + kGather + leg.depth;
    const Staged from = held.at(leg.from);
    const std::vector<int32_t> slots = stage(cell, leg.to, offset_);
    for (size_t p = 0; p < cell.parts.size(); ++p) {
      add(cell.parts[p].tensor, cell.parts[p].box, leg.from, leg.to, from.slots[p], slots[p],
          batch);
    }
    held[leg.to] = {slots, batch + 1};
  }

  /// Copies what the rank needs out of its buffer.
  void unpack(const Cell& cell, int32_t rank, const Staged& staged) {
    for (size_t p = 0; p < cell.parts.size(); ++p) {
      const CellPart& part = cell.parts[p];
      for (const auto& [box, members] : baseline_.groups(Side::kGen, part.tensor)) {
        const Box wanted = intersect(box, part.box);
        if (wanted.empty() || !has_rank(members, rank)) continue;
        add(part.tensor, wanted, rank, rank, staged.slots[p], -1, staged.since);
      }
    }
  }

  void add(int32_t tensor, const Box& box, int32_t from, int32_t to, int32_t source, int32_t target,
           int32_t batch) {
    end_ = std::max(end_, batch);
    baseline_.script.moves.push_back({.tensor = tensor,
                                      .box = box,
                                      .from = from,
                                      .to = to,
                                      .turn = {turn_.lane, batch},
                                      .source = source >= 0 ? Place::kStaging : Place::kTrain,
                                      .source_slot = source,
                                      .target_slot = target});
  }

  Baseline& baseline_;
  const int32_t lane_, lanes_;
  const Spread spread_;
  int64_t cell_bytes_ = 0;
  int32_t root_ = -1;
  std::vector<int32_t> relays_, local_;
  int32_t sequence_ = 0;  // of the current cells, one for each ring
  int32_t end_ = 0;       // last batch
  Turn turn_;
  int64_t offset_ = 0;
};

/// Ranks of the root's domain through which rings leave, the root first.
std::vector<int32_t> find_relays(const Problem& problem, int32_t root) {
  std::vector<int32_t> relays = {root};
  for (const int32_t rank : problem.train.ranks) {
    if (rank != root && relays.size() < kRings &&
        domain_of(problem, rank) == domain_of(problem, root)) {
      relays.push_back(rank);
    }
  }
  return relays;
}

}  // namespace

void make_broadcast(Baseline& baseline) {
  const int32_t root = baseline.problem.train.ranks.front();
  Broadcaster(baseline, 0, 2, Spread::kTree).run(baseline.tensors, root, {root});
}

void make_relay_broadcast(Baseline& baseline) {
  const int32_t root = baseline.problem.train.ranks.front();
  Broadcaster(baseline, 0, 2, Spread::kTree)
      .run(baseline.tensors, root, find_relays(baseline.problem, root));
}

void make_chain_broadcast(Baseline& baseline) {
  const int32_t root = baseline.problem.train.ranks.front();
  Broadcaster(baseline, 0, 1, Spread::kChain).run(baseline.tensors, root, {root});
}

void make_staged_broadcast(Baseline& baseline) {
  const TrainStages stages(baseline.problem);
  Broadcaster broadcaster(baseline, 0, 2, Spread::kTree);
  for (const bool experts : {false, true}) {
    for (int32_t stage = 0; stage < stages.count(); ++stage) {
      const int32_t root = stages.ranks(stage).front();
      std::vector<int32_t> bucket;
      int64_t bytes = 0;
      for (const int32_t tensor : baseline.tensors) {
        const Tensor& t = baseline.tensor(tensor);
        if (stages.of(tensor) != stage || (count_parameters(t) > 1) != experts) continue;
        bucket.push_back(tensor);
        bytes += tensor_bytes(t);
        if (bytes < kBucketBytes) continue;
        broadcaster.run(bucket, root, {root});
        broadcaster.drain();
        bucket.clear();
        bytes = 0;
      }
      if (bucket.empty()) continue;
      broadcaster.run(bucket, root, {root});
      broadcaster.drain();
    }
  }
}

void add_misc(Baseline& baseline, const std::vector<int32_t>& tensors, int32_t lane) {
  const int32_t root = baseline.problem.train.ranks.front();
  Broadcaster(baseline, lane, 2, Spread::kTree)
      .run(tensors, root, find_relays(baseline.problem, root));
}

}  // namespace refit
