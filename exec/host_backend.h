#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "exec/backend.h"

namespace refit {

/// All ranks as threads of one process: the embedded default, and the reference for other backends.
///
/// Every rank has an inbox. A sender puts an offer (the addresses of what it sends) into the
/// receiver's; once the receiver has posted the matching receive, its thread copies straight from
/// the sender's boxes into its own and answers with a receipt. No byte is stored in between and no
/// send is eager: a send ends when the receiver has it.
///
/// Progress is that of the whole process: while any rank still receives or copies, none times out,
/// however few the cores are. After an abort the world stays aborted.
class HostWorld {
 public:
  /// `timeout_s`: how long all ranks together may stand still in wait_any (found out within twice
  /// that time).
  HostWorld(int32_t ranks, double timeout_s);
  ~HostWorld();
  HostWorld(const HostWorld&) = delete;
  HostWorld& operator=(const HostWorld&) = delete;

  int32_t ranks() const;

  /// Memory lives as long as the world.
  Backend& backend(int32_t rank);

  /// Runs `body` once per rank, each in a thread of its own, and returns when all have ended. What
  /// a body throws aborts the world; the first such exception is thrown again here.
  void run(const std::function<void(Backend&)>& body);

 private:
  struct Shared;
  class Rank;
  std::unique_ptr<Shared> shared_;
};

}  // namespace refit
