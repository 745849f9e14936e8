#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "exec/bootstrap.h"
#include "exec/nccl_backend.h"
#include "plans/plan.h"
#include "sim/search/problem.h"
#include "tests/exec/fake_gpu.h"

namespace refit::testing {

// Jobs of the nccl backend on the test double of CUDA and NCCL, a thread a rank.

/// Threads of this process that meet.
class Gathering {
 public:
  explicit Gathering(int32_t world) : blobs(static_cast<size_t>(world)) {}

  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::string> blobs, last;
  size_t arrived = 0;
  int64_t rounds = 0;
  std::string failure;
};

class GatheringBootstrap final : public Bootstrap {
 public:
  GatheringBootstrap(Gathering& gathering, int32_t rank) : gathering_(gathering), rank_(rank) {}
  int32_t rank() const override { return rank_; }
  int32_t world() const override { return static_cast<int32_t>(gathering_.blobs.size()); }
  std::vector<std::string> all_gather(std::string_view mine) override {
    std::unique_lock lock(gathering_.mutex);
    gathering_.blobs[static_cast<size_t>(rank_)] = mine;
    const int64_t round = gathering_.rounds;
    if (++gathering_.arrived == gathering_.blobs.size()) {
      gathering_.arrived = 0;
      gathering_.last = gathering_.blobs;
      ++gathering_.rounds;
      gathering_.changed.notify_all();
    }
    gathering_.changed.wait(
        lock, [&] { return gathering_.rounds != round || !gathering_.failure.empty(); });
    if (gathering_.rounds == round) throw Error(gathering_.failure, ErrorKind::kWork);
    return gathering_.last;
  }
  void publish_failure(const std::string& reason) override {
    const std::lock_guard lock(gathering_.mutex);
    if (gathering_.failure.empty()) gathering_.failure = reason;
    gathering_.changed.notify_all();
  }
  std::string failure() override {
    const std::lock_guard lock(gathering_.mutex);
    return gathering_.failure;
  }

 private:
  Gathering& gathering_;
  const int32_t rank_;
};

struct Job {
  int32_t iterations = 3;
  NcclOptions options;
  bool with_bootstrap = true;  // else ranks learn of failures by themselves
  /// Called before each replay of each rank; what it throws is the rank's failure.
  std::function<void(int32_t rank, int32_t iteration, Bootstrap&)> before;
  std::function<void(int32_t rank, const NcclBackend&)> after;
};

/// What each rank says: empty where all went well.
std::vector<std::string> replay(const Plan& plan, FakeCluster& cluster, const Job& job);

void expect_no_errors(const std::vector<std::string>& errors);

/// A mixture-of-experts model small enough for threads, cut by every kind of parallelism.
Problem small_problem(const std::string& train, const std::string& gen);

/// Two holders per half, receivers across nodes, two channels.
Plan plain_plan(int32_t gens = 6);

}  // namespace refit::testing
