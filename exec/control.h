#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "exec/meeting.h"

namespace refit {

/// What the ranks of a world of processes tell each other beside the data: that they live, that
/// they arrived, that they failed. A star of TCP connections around rank 0, served by a thread of
/// its own on every rank, so that nothing here waits behind a payload or inside of a transport.
///
/// Failure: a rank whose connection breaks, or from which nothing is heard for `timeout_s`, has
/// failed, as has one that says so (`abort`). Rank 0 puts failures in order and tells all; the
/// first reason stands. Rank 0's own failure is found by each of the others. Every blocked and
/// later call then throws an Error with that reason, which names the rank. Whoever has passed a
/// barrier has passed: rank 0 alone decides, so that a barrier ends for all ranks or for none, but
/// for those whose rank 0 died while it said so.
class Control {
 public:
  /// With the connections of a meeting around rank 0 (exec/meeting.h): there those of all ranks, on
  /// the others the one to rank 0.
  Control(int32_t rank, int32_t world, std::vector<Connection> connections, double timeout_s);
  /// Takes leave: that a rank which has said so goes away is no failure.
  ~Control();
  Control(const Control&) = delete;
  Control& operator=(const Control&) = delete;

  double timeout_s() const;

  void barrier();

  /// The same in two parts, for those who have something to do meanwhile: is the barrier over whose
  /// number arrive() gave? Throws when the world has failed before.
  int64_t arrive();
  bool passed(int64_t number) const;

  /// Brings everybody's text to rank 0, by rank; the others get nothing and do not wait.
  std::vector<std::string> gather(const std::string& mine);

  /// This rank has failed. Returns when rank 0 knows, or after half a second.
  void abort(const std::string& reason, ErrorKind kind = ErrorKind::kWork);

  bool failed() const;
  /// Throws when the world has failed.
  void check() const;

  /// Counts what this rank has moved, in any unit.
  void add_progress(int64_t amount);
  /// Changes as long as any rank moves anything.
  int64_t progress() const;
  /// Longest time between a change on one rank and its being known to all.
  double delay_s() const;

  /// For processes that may hang where no check() is made: `act` is called with what check() would
  /// throw, on the control thread, when the world has failed for `grace_s` and this object has not
  /// begun to end.
  void on_hang(double grace_s, std::function<void(const Error&)> act);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace refit
