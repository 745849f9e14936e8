#pragma once

#include <algorithm>
#include <cstddef>
#include <limits>
#include <vector>

namespace refit {

/// The least of many values that change one at a time: a binary tree in which each node holds the
/// value and the index of the smaller of its children (ties: the left one). Usage: reset, put,
/// build; then set, and ask for the winner.
class Tournament {
 public:
  void reset(size_t count) {
    for (leaves_ = 1; leaves_ < count; leaves_ *= 2) {
    }
    nodes_.resize(2 * leaves_);
    for (size_t leaf = 0; leaf < leaves_; ++leaf)
      nodes_[leaves_ + leaf] = {std::numeric_limits<double>::infinity(), leaf};
  }

  void put(size_t index, double value) { nodes_[leaves_ + index].value = value; }

  void build() {
    for (size_t node = leaves_; node-- > 1;) {
      const Node& left = nodes_[2 * node];
      const Node& right = nodes_[2 * node + 1];
      nodes_[node] = right.value < left.value ? right : left;
    }
  }

  void set(size_t index, double value) {
    // The winner so far goes up with us: nothing on the way waits for what was just written.
    size_t node = leaves_ + index;
    nodes_[node].value = value;
    for (; node > 1; node /= 2) {
      const Node& other = nodes_[node ^ 1];
      // Without a branch: who wins is hard to guess.
      const auto is_left = static_cast<unsigned>(node % 2 == 0);
      const auto wins = static_cast<unsigned>(value < other.value) |
                        (static_cast<unsigned>(value == other.value) & is_left);
      index = other.index ^ ((other.index ^ index) & (size_t{0} - wins));
      value = std::min(value, other.value);
      nodes_[node / 2] = {value, index};
    }
  }

  size_t winner() const { return nodes_[1].index; }
  double least() const { return nodes_[1].value; }

 private:
  struct Node {
    double value = 0;
    size_t index = 0;  // of the leaf
  };

  size_t leaves_ = 1;        // a power of two
  std::vector<Node> nodes_;  // the root is 1, the children of n are 2n and 2n + 1
};

}  // namespace refit
