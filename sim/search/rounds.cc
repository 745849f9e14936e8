#include "sim/search/rounds.h"

#include <algorithm>
#include <array>
#include <deque>
#include <limits>
#include <map>
#include <tuple>

#include "base/error.h"
#include "sim/search/chunk.h"

namespace refit {
namespace {

constexpr int64_t kSliver = int64_t{16} << 10;
constexpr int kHalves = 2;    // how often the size of messages is halved
constexpr int64_t kFill = 4;  // parts of messages that fill up a round are at least 1/kFill of one
constexpr double kFull = 0.92;  // of what could go at once: a round is full enough
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
        hosts_(find_hosts(problem)),
        senders_(problem.gpu_of_rank.size()),
        receivers_(problem.gpu_of_rank.size()) {
    set_shares();
  }

  std::vector<RoundPart> run(std::span<const int32_t> hops) {
    for (const int32_t hop : hops) announce(hop);
    sort_pairs();
    for (Pair& pair : pairs_) pair.share = std::min(sender(pair).share, receiver(pair).share);
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
    int32_t out = -1, in = -1;  // ranks whose ports carry it
    double share = 1;           // of its slower port
    bool drains = false;        // what lies in slots of the sender
    int64_t chosen = 0;         // bytes, in this round
    bool begun = false;
    int64_t ready = 0;  // bytes in the queue
    int64_t left = 0;   // bytes, those that are yet to arrive at the sender included
  };
  struct Port {
    double share = 1;   // rate of its NICs, of that of the fastest port
    int64_t left = 0;   // bytes, over all rounds
    int64_t room = 0;   // bytes, in this round
    int64_t ready = 0;  // bytes, not more than in this round
    int32_t peers = 0;
    std::vector<size_t> pairs;  // of receivers; of senders those chosen
    double time_left() const { return static_cast<double>(left) / share; }
    bool seen = false;  // of senders: find_message found no way by it
  };
  const Hop& at(int32_t hop) const { return routing_.hops[static_cast<size_t>(hop)]; }
  const Box& whole_box(int32_t hop) const {
    return routing_.boxes[static_cast<size_t>(at(hop).box)];
  }
  int64_t bytes(const Item& item) const {
    return box_bytes(problem_, at(item.hop).tensor, item.box);
  }
  Port& sender(const Pair& pair) { return senders_[static_cast<size_t>(pair.out)]; }
  Port& receiver(const Pair& pair) { return receivers_[static_cast<size_t>(pair.in)]; }

  static int64_t share_of(int64_t bytes, double share) {
    if (share == 1) return std::max<int64_t>(bytes, 1);
    return std::max<int64_t>(static_cast<int64_t>(static_cast<double>(bytes) * share), 1);
  }

  void set_shares() {
    const std::vector<PortRate> rates = port_rates(problem_);
    double fastest = 0;
    for (const PortRate& rate : rates) fastest = std::max({fastest, rate.out, rate.in});
    for (size_t rank = 0; rank < rates.size(); ++rank) {
      if (rates[rank].out > 0) senders_[rank].share = rates[rank].out / fastest;
      if (rates[rank].in > 0) receivers_[rank].share = rates[rank].in / fastest;
      is_even_ = is_even_ && senders_[rank].share == 1 && receivers_[rank].share == 1;
    }
  }

  /// Counts a hop and all below it into what its ports have to do.
  void announce(int32_t index) {
    const Hop& hop = at(index);
    const auto [it, added] = pair_of_.try_emplace({hop.from, hop.to}, pairs_.size());
    if (added) {
      pairs_.push_back({.from = hop.from,
                        .to = hop.to,
                        .out = hosts_[static_cast<size_t>(hop.from)],
                        .in = hosts_[static_cast<size_t>(hop.to)]});
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

  /// Those of a receiver side by side, in the order in which they were announced.
  void sort_pairs() {
    std::ranges::stable_sort(pairs_, {}, &Pair::in);
    for (Port& port : receivers_) port.pairs.clear();
    for (size_t index = 0; index < pairs_.size(); ++index) {
      receiver(pairs_[index]).pairs.push_back(index);
      pair_of_[{pairs_[index].from, pairs_[index].to}] = index;
    }
    queues_.resize(pairs_.size());
  }

  void enqueue(Item item) {
    const Hop& hop = at(item.hop);
    const size_t pair = pair_of_.at({hop.from, hop.to});
    pairs_[pair].ready += bytes(item);
    queues_[pair].push_back(std::move(item));
  }

  void pack(int32_t round) {
    std::vector<int32_t> order;
    for (int32_t rank = 0; rank < std::ssize(receivers_); ++rank) {
      Port& port = receivers_[static_cast<size_t>(rank)];
      if (port.left > 0) order.push_back(rank);
      std::erase_if(port.pairs, [&](size_t pair) { return pairs_[pair].left == 0; });
    }
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
      return receivers_[static_cast<size_t>(a)].time_left() >
             receivers_[static_cast<size_t>(b)].time_left();
    });
    const int64_t largest = round_bytes(shape_, round);
    bool done = false;
    for (int halves = 0; is_even_ && !done && !partial_ && halves <= kHalves; ++halves) {
      begin(largest >> halves, largest >> halves);
      choose_all(order);
      for (Port& port : senders_) port.seen = false;
      for (const int32_t rank : order) {
        // Senders by which a search found no way are of no use to later ones either.
        for (visited_.clear(); find_message(rank); visited_.clear()) {
          for (const int32_t from : visited_) senders_[static_cast<size_t>(from)].seen = false;
        }
      }
      done = is_full();
    }
    if (!done) {
      begin(largest, is_even_ ? largest >> kHalves : largest);
      rest_ = true;
      choose_all(order);
      fill_ = true;
      choose_all(order);
      rest_ = fill_ = false;
    }
    for (Port& port : senders_) {
      for (const size_t pair : port.pairs) send(pair, round);
      port.pairs.clear();
    }
  }

  /// Empties the round, for `room` bytes at a port in messages of `size`.
  void begin(int64_t room, int64_t size) {
    size_ = std::max<int64_t>(size, 1);
    for (Port& port : senders_) {
      for (const size_t pair : port.pairs) pairs_[pair].chosen = 0;
      port.pairs.clear();
    }
    for (std::vector<Port>* ports : {&senders_, &receivers_}) {
      for (Port& port : *ports) {
        port.room = share_of(room, port.share);
        port.ready = 0;
        port.peers = 0;
      }
    }
  }

  /// Does the round carry about as much as its ports could, whoever their peers?
  bool is_full() {
    int64_t chosen = 0;
    for (const Pair& pair : pairs_) {
      chosen += pair.chosen;
      sender(pair).ready += pair.ready;
      receiver(pair).ready += pair.ready;
    }
    int64_t most = std::numeric_limits<int64_t>::max();
    for (std::vector<Port>* ports : {&senders_, &receivers_}) {
      int64_t sum = 0;
      for (const Port& port : *ports) sum += std::min(port.ready, share_of(size_, port.share));
      most = std::min(most, sum);
    }
    return static_cast<double>(chosen) >= kFull * static_cast<double>(most);
  }

  void choose_all(const std::vector<int32_t>& order) {
    for (const int32_t rank : order) {
      const Port& port = receivers_[static_cast<size_t>(rank)];
      while (port.peers < kMaxPeersPerStep) {
        const int64_t best = best_pair(port);
        if (best < 0) break;
        choose(static_cast<size_t>(best), next_message(pairs_[static_cast<size_t>(best)]));
      }
    }
  }

  void choose(size_t index, int64_t size) {
    Pair& pair = pairs_[index];
    pair.chosen = size;
    sender(pair).pairs.push_back(index);
    for (Port* port : {&sender(pair), &receiver(pair)}) {
      port->room -= size;
      ++port->peers;
    }
  }

  void give_up(size_t index) {
    Pair& pair = pairs_[index];
    std::erase(sender(pair).pairs, index);
    for (Port* port : {&sender(pair), &receiver(pair)}) {
      port->room += pair.chosen;
      --port->peers;
    }
    pair.chosen = 0;
  }

  /// One message more for a receiver, for which others may get theirs from other senders: an
  /// augmenting path of a matching.
  bool find_message(int32_t rank) {
    const Port& to = receivers_[static_cast<size_t>(rank)];
    for (const size_t index : to.pairs) {
      const Pair& pair = pairs_[index];
      Port& from = sender(pair);
      if (pair.chosen > 0 || from.seen) continue;
      const int64_t size = next_message(pair);
      if (size == 0 || !has_room(to, size)) continue;
      from.seen = true;
      visited_.push_back(pair.out);
      if (has_room(from, size)) {
        choose(index, size);
        return true;
      }
      const std::vector<size_t> taken = from.pairs;
      for (const size_t other : taken) {
        const int64_t freed = pairs_[other].chosen;
        give_up(other);
        if (has_room(from, size) && find_message(pairs_[other].in)) {
          choose(index, size);
          return true;
        }
        choose(other, freed);
      }
    }
    return false;
  }

  /// Bytes of the next message of a pair; 0: none now.
  int64_t next_message(const Pair& pair) {
    const int64_t whole = share_of(size_, pair.share);
    int64_t size = pair.left <= whole + whole / kSlack ? pair.left : whole;
    if (partial_) size = std::min(size, pair.ready);
    if (fill_) {
      const int64_t room = std::min(sender(pair).room, receiver(pair).room);
      if (room >= whole / kFill) size = std::min(size, room);
    }
    if (!rest_ && size < whole - whole / kSlack) return 0;
    return size <= pair.ready ? size : 0;
  }

  bool has_room(const Port& port, int64_t size) const {
    return port.peers < kMaxPeersPerStep && size <= port.room + size / kSlack;
  }

  int64_t best_pair(const Port& port) {
    int64_t best = -1;
    std::tuple<bool, bool, double> best_rank;
    for (const size_t index : port.pairs) {
      const Pair& pair = pairs_[index];
      const Port& from = senders_[static_cast<size_t>(pair.out)];
      if (pair.chosen > 0 || from.room <= 0) continue;
      const int64_t size = next_message(pair);
      if (size == 0 || !has_room(port, size) || !has_room(from, size)) continue;
      const std::tuple rank(pair.drains, !pair.begun, from.time_left());
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
    const int64_t size = pair.chosen;
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
    pair.chosen = 0;
    pair.begun = true;
    for (Port* port : {&sender(pair), &receiver(pair)}) port->left -= sent;
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
  const std::vector<int32_t> hosts_;       // by rank
  std::vector<Port> senders_, receivers_;  // by rank, of those that are hosts
  std::vector<Pair> pairs_;
  std::vector<std::deque<Item>> queues_;  // by pair
  std::map<std::pair<int32_t, int32_t>, size_t> pair_of_;
  std::vector<std::vector<Item>> arrivals_;  // by round
  std::vector<int32_t> visited_;             // senders, by the search for a message
  int64_t left_ = 0;
  int64_t size_ = 0;      // of the messages of the round being packed
  bool is_even_ = true;   // all ports have one rate
  bool rest_ = false;     // what is smaller goes too
  bool fill_ = false;     // and parts of messages, for which there is room
  bool partial_ = false;  // send what is ready, however little
  std::vector<RoundPart> result_;
};

}  // namespace

int64_t round_bytes(const RoundShape& shape, int32_t round) {
  if (!shape.uneven) {
    // The first ones differ, so that from then on one lane is between messages at a time.
    const int64_t part = std::min(round + 1, shape.lag);
    return std::max<int64_t>(shape.message * part / shape.lag, 1);
  }
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
