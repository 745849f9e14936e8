#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "exec/conversion.h"
#include "plans/box.h"

namespace refit {

/// A box in memory: `count[0] x count[1] x ...` runs of `run` bytes each, `stride` bytes apart per
/// dimension (outermost first). Its bytes have an order: run after run, the last dimension fastest.
struct Strided {
  std::byte* base = nullptr;
  int64_t run = 0;
  int32_t dims = 0;
  int64_t count[kMaxDims] = {};
  int64_t stride[kMaxDims] = {};
  int64_t bytes() const {
    int64_t total = run;
    for (int32_t d = 0; d < dims; ++d) total *= count[d];
    return total;
  }
};

/// Where buffers and packed messages begin, in bytes: what GPUs and vector units like; also keeps
/// them off each other's cache lines.
inline constexpr int64_t kAlignment = 256;
inline int64_t align(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

/// One end of a transfer, resolved to addresses. What is sent is the concatenation of the boxes.
struct Part {
  int32_t peer = -1;
  int64_t bytes = 0;
  std::vector<Strided> boxes;
  /// By box, for backends that cast, where some box is cast; that box then has bytes and no
  /// address.
  std::vector<Conversion> conversions = {};
};

/// A step, resolved. Sends to oneself pair up with receives from oneself.
struct Group {
  int32_t channel = 0, step = 0;
  std::vector<Part> sends, recvs;
  std::vector<int32_t> after =
      {};  // groups of other channels that end before it begins, as in bind
};

/// What an executor needs of a transport; one object per rank, used by that rank's thread only.
/// Groups of a channel are posted one at a time, each after the one before it has ended; channels
/// run concurrently.
class Backend {
 public:
  virtual ~Backend() = default;
  virtual std::string name() const = 0;
  virtual int32_t rank() const = 0;
  virtual int32_t world() const = 0;

  /// Memory for buffers, staging and packing; freed with the backend. Throws Error when there is
  /// not enough.
  virtual std::byte* allocate(int64_t bytes) = 0;

  /// Whether this process reads and writes allocated memory by itself; else it does so by `copy`,
  /// which goes either way.
  virtual bool in_host_memory() const { return true; }
  virtual void copy(std::byte* to, const std::byte* from, int64_t bytes) {
    std::memcpy(to, from, static_cast<size_t>(bytes));
  }

  /// Whether it does the conversions of a group by itself, when the group runs; else they are done
  /// in host memory, before the group is posted and after it has ended.
  virtual bool casts() const { return false; }

  /// Opens what it takes to exchange messages with these ranks, each of which has to do the same.
  /// Calls are optional: what is not open by then is opened by the first message.
  virtual void connect(std::span<const int32_t> /*peers*/) {}

  /// All groups that will be posted, once, before the first replay; they stay where they are as
  /// long as the backend. For backends that prepare: pack buffers, connections, registration.
  virtual void bind(std::span<const Group>) {}

  /// Around the groups of one replay. False: the backend repeats by itself what was posted before,
  /// and nothing is to be posted. A backend whose groups end in the order of a device's streams,
  /// not of the host, waits for them in end_replay.
  virtual bool begin_replay() { return true; }
  virtual void end_replay() {}

  /// Starts all messages of the group and returns. The group stays alive and untouched until it has
  /// ended.
  virtual void post(const Group& group) = 0;

  /// Blocks until some posted group has ended (all its messages are in place, or received by the
  /// peer) and returns its channel. Throws Error (kind kWork) that names the ranks when `timeout_s`
  /// passes without progress or another rank has aborted.
  virtual int32_t wait_any() = 0;

  virtual void barrier() = 0;

  /// Tells all ranks that this one has failed; every blocked call of theirs throws an Error (kWork)
  /// with `reason`, which should name the rank. The first reason stands. When it returns, no peer
  /// touches this rank's memory or groups any more.
  virtual void abort(const std::string& reason) = 0;
};

}  // namespace refit
