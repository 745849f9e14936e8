#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "sim/search/search.h"

namespace refit {

/// Seconds of work that the routes chosen so far put on every link; equal parts where a message
/// takes several ways (count_ways).
class LinkLoad {
 public:
  explicit LinkLoad(const Problem& problem);

  /// Is there a path?
  bool joined(int32_t from_rank, int32_t to_rank) { return path(from_rank, to_rank).joined; }

  /// Load of the fullest link on the path if it carried `bytes` more; infinite where there is none.
  double peak_with(int32_t from_rank, int32_t to_rank, int64_t bytes);
  /// Of the fullest link of all.
  double peak() const;
  void add(int32_t from_rank, int32_t to_rank, int64_t bytes);

  /// Bytes added so far that enter the rank.
  int64_t received(int32_t rank) const { return received_[static_cast<size_t>(rank)]; }

  /// Does a path join any of `holders` with `to`?
  bool reached(const std::vector<int32_t>& holders, int32_t to);

  /// Bytes added so far for this pair.
  int64_t sent(int32_t from_rank, int32_t to_rank) { return path(from_rank, to_rank).bytes; }

  /// Of `holders`, the one whose path to `to` stays least loaded; of equals the one that has sent
  /// least, then the first. Of those within `limit` rather the one that has sent most to `to`: few
  /// pairs that carry much each pipeline well. Fails where no path joins any of them with `to`.
  int32_t best_holder(const std::vector<int32_t>& holders, int32_t to, int64_t bytes,
                      double limit = 0);

  int32_t domain(int32_t rank) const { return domain_[static_cast<size_t>(rank)]; }

  /// Of the first NIC of its own; -1: it has none.
  int32_t rail(int32_t rank) const;

  /// The ranks of an NVLink domain, ascending.
  const std::vector<int32_t>& ranks_of(int32_t domain) const {
    return ranks_of_[static_cast<size_t>(domain)];
  }

 private:
  struct Part {
    int32_t link;
    double seconds;  // per byte of the message
  };
  struct Path {
    bool joined = false;
    int64_t bytes = 0;
    std::vector<Part> parts;  // each link once
  };
  Path& path(int32_t from_rank, int32_t to_rank);

  const Problem& problem_;
  std::vector<double> rate_;  // by link
  std::vector<double> load_;  // by link, seconds
  std::vector<int32_t> domain_;
  std::vector<std::vector<int32_t>> ranks_of_;  // by domain
  std::vector<int64_t> sent_, received_;
  std::unordered_map<int64_t, Path> path_;  // by from * ranks + to, made on first use
};

}  // namespace refit
