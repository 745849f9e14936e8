#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "sim/search/search.h"

namespace refit {

/// Seconds of work that the routes chosen so far put on every link.
class LinkLoad {
 public:
  explicit LinkLoad(const Problem& problem);

  /// Load of the fullest link on the path if it carried `bytes` more.
  double peak_with(int32_t from_rank, int32_t to_rank, int64_t bytes);
  void add(int32_t from_rank, int32_t to_rank, int64_t bytes);

  /// Bytes added so far that enter the rank.
  int64_t received(int32_t rank) const { return received_[static_cast<size_t>(rank)]; }

  /// Of `holders`, the one whose path to `to` stays least loaded; of equals the one that has sent
  /// least, then the first.
  int32_t best_holder(const std::vector<int32_t>& holders, int32_t to, int64_t bytes);

  int32_t domain(int32_t rank) const { return domain_[static_cast<size_t>(rank)]; }

 private:
  const std::vector<int32_t>& path(int32_t from_rank, int32_t to_rank);

  const Problem& problem_;
  std::vector<double> rate_;  // by link
  std::vector<double> load_;  // by link, seconds
  std::vector<int32_t> domain_;
  std::vector<int64_t> sent_, received_;
  std::unordered_map<int64_t, std::vector<int32_t>>
      path_;  // by from * ranks + to, made on first use
};

}  // namespace refit
