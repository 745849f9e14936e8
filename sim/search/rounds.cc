#include "sim/search/rounds.h"

#include <algorithm>
#include <array>
#include <deque>
#include <map>
#include <tuple>

#include "base/error.h"
#include "sim/search/chunk.h"

namespace refit {
namespace {

constexpr int64_t kSliver = int64_t{16} << 10;
constexpr int64_t kFill = 4;    // parts that fill up a round are at least 1/kFill of it
constexpr int64_t kSlack = 64;  // a round may be too full by 1/kSlack, where rows do not divide
// Sizes of uneven rounds, in parts of the largest. As many as no number of channels divides, so
// that every channel meets all of them.
constexpr std::array<int64_t, 5> kUneven = {3, 4, 5, 6, 7};

class RoundPacker {
 public:
  RoundPacker(const Problem& problem, const Routing& routing,
              std::span<const std::vector<int32_t>> children, const RoundShape& shape)
      : problem_(problem),
        routing_(routing),
        children_(children),
        shape_(shape),
        senders_(problem.gpu_of_rank.size()),
        receivers_(problem.gpu_of_rank.size()) {
    set_shares();
  }

  std::vector<RoundPart> run(std::span<const int32_t> hops) {
    for (const int32_t hop : hops) announce(hop);
    for (Pair& pair : pairs_) {
      pair.share = std::min(sender(pair).share, receiver(pair).share);
      pair.odd = pair.left % share_of(shape_.message, pair.share);
    }
    for (const int32_t hop : hops) enqueue({hop, whole_box(hop), -1});
    for (int32_t round = 0; left_ > 0; ++round) {
      if (static_cast<size_t>(round) < arrivals_.size()) {
        for (const Item& item : arrivals_[static_cast<size_t>(round)]) enqueue(item);
        arrivals_[static_cast<size_t>(round)].clear();
      }
      const int64_t before = left_;
      pack(round);
      if (left_ == before && static_cast<size_t>(round) + 1 >= arrivals_.size()) {
        // Messages wait for one another to be full: let what there is go.
        partial_ = true;
        pack(round);
        partial_ = false;
        REFIT_CHECK(left_ < before);
      }
    }
    return std::move(result_);
  }

 private:
  struct Item {
    int32_t hop;
    Box box;
    int32_t after;
  };
  struct Pair {
    int32_t from, to;
    int32_t last_round = -1;
    double share = 1;  // of its slower port
    bool begun = false;
    bool drains = false;  // what lies in slots of the sender
    int64_t odd = 0;      // bytes that full messages leave over
    int64_t ready = 0;    // bytes in the queue
    int64_t left = 0;     // bytes, those that are yet to arrive at the sender included
  };
  struct Port {
    double share = 1;  // rate of its NICs, of that of the fastest port
    int64_t left = 0;  // bytes, over all rounds
    int64_t room = 0;  // bytes, in this round
    int32_t peers = 0;
    std::vector<size_t> pairs;  // of receivers
  };
  const Hop& at(int32_t hop) const { return routing_.hops[static_cast<size_t>(hop)]; }
  const Box& whole_box(int32_t hop) const {
    return routing_.boxes[static_cast<size_t>(at(hop).box)];
  }
  int64_t bytes(const Item& item) const {
    return box_bytes(problem_, at(item.hop).tensor, item.box);
  }
  Port& sender(const Pair& pair) { return senders_[static_cast<size_t>(pair.from)]; }
  Port& receiver(const Pair& pair) { return receivers_[static_cast<size_t>(pair.to)]; }

  static int64_t share_of(int64_t bytes, double share) {
    return std::max<int64_t>(static_cast<int64_t>(static_cast<double>(bytes) * share), 1);
  }

  void set_shares() {
    const std::vector<PortRate> rates = port_rates(problem_);
    double fastest = 0;
    for (const PortRate& rate : rates) fastest = std::max({fastest, rate.out, rate.in});
    for (size_t rank = 0; rank < rates.size(); ++rank) {
      if (rates[rank].out > 0) senders_[rank].share = rates[rank].out / fastest;
      if (rates[rank].in > 0) receivers_[rank].share = rates[rank].in / fastest;
    }
  }

  /// Counts a hop and all below it into what its ports have to do.
  void announce(int32_t index) {
    const Hop& hop = at(index);
    const auto [it, added] = pair_of_.try_emplace({hop.from, hop.to}, pairs_.size());
    if (added) {
      pairs_.push_back({.from = hop.from, .to = hop.to});
      queues_.emplace_back();
      receiver(pairs_.back()).pairs.push_back(it->second);
    }
    const int64_t size = box_bytes(problem_, hop.tensor, whole_box(index));
    Pair& pair = pairs_[it->second];
    pair.drains = pair.drains || (hop.parent >= 0 && at(hop.parent).staged);
    pair.left += size;
    sender(pair).left += size;
    receiver(pair).left += size;
    left_ += size;
    for (const int32_t child : children_[static_cast<size_t>(index)]) announce(child);
  }

  void enqueue(Item item) {
    const Hop& hop = at(item.hop);
    const size_t pair = pair_of_.at({hop.from, hop.to});
    pairs_[pair].ready += bytes(item);
    queues_[pair].push_back(std::move(item));
  }

  void pack(int32_t round) {
    size_ = round_bytes(shape_, round);
    for (std::vector<Port>* ports : {&senders_, &receivers_}) {
      for (Port& port : *ports) {
        port.room = share_of(size_, port.share);
        port.peers = 0;
      }
    }
    std::vector<int32_t> order;
    for (int32_t rank = 0; rank < std::ssize(receivers_); ++rank) {
      if (receivers_[static_cast<size_t>(rank)].left > 0) order.push_back(rank);
    }
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
      return receivers_[static_cast<size_t>(a)].left > receivers_[static_cast<size_t>(b)].left;
    });
    for (const bool fill : {false, true}) {
      fill_ = fill;
      for (const int32_t rank : order) {
        Port& port = receivers_[static_cast<size_t>(rank)];
        std::erase_if(port.pairs, [&](size_t pair) { return pairs_[pair].left == 0; });
        while (port.peers < kMaxPeersPerStep) {
          const int64_t best = best_pair(port, round);
          if (best < 0) break;
          send(static_cast<size_t>(best), round);
        }
      }
    }
  }

  /// Bytes of the next message of a pair, for which its ports have `room`; 0: none now.
  int64_t next_message(const Pair& pair, int64_t room) const {
    const int64_t whole = share_of(size_, pair.share);
    const int64_t slack = whole / kSlack;
    int64_t size = pair.left <= whole + slack ? pair.left : whole;
    if (!pair.begun && pair.odd > slack) size = std::min(size, pair.odd);
    if (partial_) return std::min({size, pair.ready, room});
    if (size > room + slack) {
      if (!fill_ || room < whole / kFill) return 0;
      size = room;
    }
    return size <= pair.ready ? size : 0;
  }

  int64_t room(const Pair& pair) const {
    return std::min(senders_[static_cast<size_t>(pair.from)].room,
                    receivers_[static_cast<size_t>(pair.to)].room);
  }

  int64_t best_pair(const Port& port, int32_t round) const {
    int64_t best = -1;
    std::tuple<bool, bool, int64_t> best_rank;
    for (const size_t index : port.pairs) {
      const Pair& pair = pairs_[index];
      const Port& from = senders_[static_cast<size_t>(pair.from)];
      if (pair.ready == 0 || pair.last_round == round || from.peers >= kMaxPeersPerStep ||
          next_message(pair, room(pair)) <= 0) {
        continue;
      }
      const std::tuple rank(pair.drains, !pair.begun, from.left);
      if (best < 0 || rank > best_rank) {
        best = static_cast<int64_t>(index);
        best_rank = rank;
      }
    }
    return best;
  }

  void send(size_t index, int32_t round) {
    Pair& pair = pairs_[index];
    std::deque<Item>& queue = queues_[index];
    const int64_t size = next_message(pair, room(pair));
    // Cut neither off nor down to less than this.
    const int64_t sliver = size == pair.left ? 0 : std::min(kSliver, size / kSlack);
    int64_t rest = size;
    while (rest > sliver && !queue.empty()) {
      Item item = std::move(queue.front());
      queue.pop_front();
      if (bytes(item) <= rest + sliver) {
        rest -= bytes(item);
        emit(item, round);
        continue;
      }
      const int64_t bits =
          dtype_bits(problem_.model.tensors[static_cast<size_t>(at(item.hop).tensor)].dtype);
      const Cutting cutting = cut_box(item.box, rest * 8 / bits, bits == 4);
      for (auto it = cutting.left.rbegin(); it != cutting.left.rend(); ++it) {
        queue.push_front({item.hop, *it, item.after});
      }
      for (const Box& taken : cutting.taken) {
        const Item part{item.hop, taken, item.after};
        rest -= bytes(part);
        emit(part, round);
      }
    }
    const int64_t sent = size - rest;
    pair.ready -= sent;
    pair.left -= sent;
    pair.last_round = round;
    pair.begun = true;
    for (Port* port : {&sender(pair), &receiver(pair)}) {
      port->left -= sent;
      port->room -= sent;
      ++port->peers;
    }
    left_ -= sent;
  }

  void emit(const Item& item, int32_t round) {
    result_.push_back({{item.hop, item.box}, round, item.after});
    for (const int32_t child : children_[static_cast<size_t>(item.hop)]) {
      const auto ready = static_cast<size_t>(round + shape_.lag);
      if (arrivals_.size() <= ready) arrivals_.resize(ready + 1);
      arrivals_[ready].push_back({child, item.box, round});
    }
  }

  const Problem& problem_;
  const Routing& routing_;
  std::span<const std::vector<int32_t>> children_;
  const RoundShape shape_;
  std::vector<Port> senders_, receivers_;  // by rank
  std::vector<Pair> pairs_;
  std::vector<std::deque<Item>> queues_;  // by pair
  std::map<std::pair<int32_t, int32_t>, size_t> pair_of_;
  std::vector<std::vector<Item>> arrivals_;  // by round
  int64_t left_ = 0;
  int64_t size_ = 0;      // of the round being packed
  bool fill_ = false;     // fill up rooms with parts of messages
  bool partial_ = false;  // send what is ready, however little
  std::vector<RoundPart> result_;
};

}  // namespace

int64_t round_bytes(const RoundShape& shape, int32_t round) {
  if (!shape.uneven) return shape.message;
  const int64_t part = kUneven[static_cast<size_t>(round) % kUneven.size()];
  return std::max<int64_t>(shape.message * part / kUneven.back(), 1);
}

std::vector<RoundPart> pack_rounds(const Problem& problem, const Routing& routing,
                                   std::span<const int32_t> hops,
                                   std::span<const std::vector<int32_t>> children,
                                   const RoundShape& shape) {
  REFIT_CHECK(shape.message > 0 && shape.lag > 0);
  return RoundPacker(problem, routing, children, shape).run(hops);
}

}  // namespace refit
