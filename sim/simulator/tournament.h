#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace refit {

/// The least of many values that change one at a time: a binary tree in which each node holds the
/// winner, the index of the smaller of its children's values (ties: the left one). Usage: reset,
/// put, build; then set, and ask for the winner.
class Tournament {
 public:
  void reset(size_t count) {
    for (leaves_ = 1; leaves_ < count; leaves_ *= 2) {
    }
    value_.assign(leaves_, std::numeric_limits<double>::infinity());
    winner_.resize(2 * leaves_);
    for (size_t leaf = 0; leaf < leaves_; ++leaf)
      winner_[leaves_ + leaf] = static_cast<uint32_t>(leaf);
  }

  void put(size_t index, double value) { value_[index] = value; }

  void build() {
    for (size_t node = leaves_; node-- > 1;) play(node);
  }

  void set(size_t index, double value) {
    value_[index] = value;
    for (size_t node = (leaves_ + index) / 2; node > 0; node /= 2) play(node);
  }

  size_t winner() const { return winner_[1]; }
  double least() const { return value_[winner()]; }

 private:
  void play(size_t node) {
    const uint32_t left = winner_[2 * node], right = winner_[2 * node + 1];
    winner_[node] = value_[right] < value_[left] ? right : left;
  }

  size_t leaves_ = 1;             // a power of two
  std::vector<double> value_;     // by leaf
  std::vector<uint32_t> winner_;  // by node: the root is 1, the children of n are 2n and 2n + 1
};

}  // namespace refit
