#include "sim/search/colouring.h"

#include <algorithm>
#include <bit>

#include "base/error.h"

namespace refit {
namespace {

/// Edge of each colour at every port of one side, and which colours are free there.
class Ports {
 public:
  Ports(int32_t ports, int32_t colours)
      : colours_(static_cast<size_t>(colours)),
        words_((colours_ + 63) / 64),
        edge_(static_cast<size_t>(ports) * colours_, -1),
        used_(static_cast<size_t>(ports) * words_, 0) {}

  int32_t edge(int32_t port, int32_t colour) const { return edge_[at(port, colour)]; }
  void set(int32_t port, int32_t colour, int32_t edge) {
    edge_[at(port, colour)] = edge;
    const auto c = static_cast<size_t>(colour);
    uint64_t& word = used_[static_cast<size_t>(port) * words_ + c / 64];
    const uint64_t bit = uint64_t{1} << (c % 64);
    word = edge >= 0 ? word | bit : word & ~bit;
  }
  int32_t first_free(int32_t port) const {
    for (size_t w = 0; w < words_; ++w) {
      const uint64_t free = ~used_[static_cast<size_t>(port) * words_ + w];
      if (free != 0) return static_cast<int32_t>(w * 64) + std::countr_zero(free);
    }
    return -1;
  }
  /// First colour free at `port` here and at `other_port` of `other`, or -1.
  int32_t first_common(int32_t port, const Ports& other, int32_t other_port) const {
    for (size_t w = 0; w < words_; ++w) {
      const uint64_t free = ~(used_[static_cast<size_t>(port) * words_ + w] |
                              other.used_[static_cast<size_t>(other_port) * words_ + w]);
      if (free == 0) continue;
      const int32_t colour = static_cast<int32_t>(w * 64) + std::countr_zero(free);
      return static_cast<size_t>(colour) < colours_ ? colour : -1;
    }
    return -1;
  }

 private:
  size_t at(int32_t port, int32_t colour) const {
    return static_cast<size_t>(port) * colours_ + static_cast<size_t>(colour);
  }
  size_t colours_, words_;
  std::vector<int32_t> edge_;
  std::vector<uint64_t> used_;
};

}  // namespace

std::vector<int32_t> colour_edges(std::span<const PortPair> edges) {
  std::vector<int32_t> from_degree, to_degree;
  const auto count = [](std::vector<int32_t>& degree, int32_t port) {
    if (static_cast<size_t>(port) >= degree.size()) degree.resize(static_cast<size_t>(port) + 1, 0);
    return ++degree[static_cast<size_t>(port)];
  };
  int32_t colours = 0;
  for (const PortPair& edge : edges) {
    colours = std::max({colours, count(from_degree, edge.from), count(to_degree, edge.to)});
  }
  Ports from(static_cast<int32_t>(from_degree.size()), colours);
  Ports to(static_cast<int32_t>(to_degree.size()), colours);
  std::vector<int32_t> colour(edges.size(), -1);
  std::vector<int32_t> path;
  for (size_t e = 0; e < edges.size(); ++e) {
    const PortPair edge = edges[e];
    int32_t chosen = from.first_common(edge.from, to, edge.to);
    if (chosen < 0) {
      // a is free at the sender, b at the receiver. Swap a and b along the path that leaves the
      // receiver by a: it cannot end at the sender, since the graph is bipartite and a is free
      // there. Then a is free at both.
      const int32_t a = from.first_free(edge.from), b = to.first_free(edge.to);
      path.clear();
      int32_t port = edge.to;
      for (bool at_receiver = true;; at_receiver = !at_receiver) {
        const int32_t next = at_receiver ? to.edge(port, a) : from.edge(port, b);
        if (next < 0) break;
        path.push_back(next);
        port = at_receiver ? edges[static_cast<size_t>(next)].from
                           : edges[static_cast<size_t>(next)].to;
      }
      for (const int32_t p : path) {
        const PortPair& swapped = edges[static_cast<size_t>(p)];
        from.set(swapped.from, colour[static_cast<size_t>(p)], -1);
        to.set(swapped.to, colour[static_cast<size_t>(p)], -1);
      }
      for (const int32_t p : path) {
        const PortPair& swapped = edges[static_cast<size_t>(p)];
        int32_t& c = colour[static_cast<size_t>(p)];
        c = c == a ? b : a;
        from.set(swapped.from, c, p);
        to.set(swapped.to, c, p);
      }
      chosen = a;
    }
    REFIT_CHECK(chosen >= 0);
    colour[e] = chosen;
    from.set(edge.from, chosen, static_cast<int32_t>(e));
    to.set(edge.to, chosen, static_cast<int32_t>(e));
  }
  return colour;
}

}  // namespace refit
