#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "exec/backend.h"
#include "exec/sweep.h"

namespace refit {

/// One message of a step as the transport sees it.
struct WireMessage {
  int32_t peer = -1;
  std::byte* at = nullptr;
  int64_t bytes = 0;
};

/// A step as a device runs it: one sweep (packing, local copies), then all messages, then one sweep
/// (unpacking). A message that is one run of bytes goes from and to where it lies; all others go
/// through the packing buffer. Casts pack and unpack as copies do.
struct DeviceStep {
  Sweep before, after;
  std::vector<WireMessage> sends, recvs;
};

/// Bytes of packing that the group needs on this rank.
int64_t packing_bytes(const Group& group, int32_t rank);

/// `packing` has packing_bytes(group, rank) bytes, at a multiple of kAlignment.
DeviceStep make_device_step(const Group& group, int32_t rank, std::byte* packing);

}  // namespace refit
