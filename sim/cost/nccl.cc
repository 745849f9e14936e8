#include "sim/cost/nccl.h"

#include <algorithm>

#include "base/error.h"

namespace refit {
namespace {

constexpr int32_t kPeersPerChannel = 8;  // NCCL_MAX_DEV_WORK_P2P_PER_BATCH, src/include/device.h

int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

int64_t chunk_of(const NcclCost& nccl, const Communicator& communicator) {
  return communicator.network ? nccl.net.chunk : nccl.nvlink.chunk;
}

}  // namespace

int32_t channels_per_peer(const NcclCost& nccl, const Communicator& communicator) {
  REFIT_CHECK(nccl.channels > 0);
  int32_t channels = nccl.channels;
  if (communicator.nvlink) channels = std::min(channels, nccl.nvlink.channels);
  if (!communicator.network) return channels;
  channels = std::min(channels, nccl.net.channels);
  const int32_t peers =
      nccl.max_peers > 0 ? std::min(nccl.max_peers, communicator.ranks) : communicator.ranks;
  while (channels > 1 && channels * divide_up(peers, kPeersPerChannel) > nccl.channels)
    channels /= 2;
  return channels;
}

int32_t channels_of_message(const NcclCost& nccl, const Communicator& communicator, int64_t bytes) {
  REFIT_CHECK(bytes > 0);
  const int32_t most_channels = channels_per_peer(nccl, communicator);
  int32_t channels = most_channels;
  while (channels > 1 && int64_t{channels} * communicator.ranks > nccl.channels) channels /= 2;
  const int64_t chunk = chunk_of(nccl, communicator);
  const int64_t least = communicator.network ? chunk / 2 : chunk / 8;
  const int64_t most = communicator.network ? chunk : chunk * 32;
  channels = static_cast<int32_t>(std::min<int64_t>(channels, divide_up(bytes, least)));
  while (std::max(least, divide_up(bytes, channels)) > most && channels <= most_channels / 2)
    channels *= 2;
  return channels;
}

MessageShape shape_message(const NcclCost& nccl, const Communicator& communicator, LinkKind kind,
                           int64_t bytes, int32_t together, double path_rate) {
  const ChannelCost& cost = kind == LinkKind::kNvlink ? nccl.nvlink : nccl.net;
  const int32_t channels = channels_of_message(nccl, communicator, bytes);
  const double share = static_cast<double>(nccl.channels) / std::max(together, 1);
  MessageShape shape{.rate = cost.rate * std::min<double>(channels, share)};
  if (cost.fills == 0) return shape;
  const int64_t part = divide_up(bytes, channels);
  int64_t chunk = chunk_of(nccl, communicator);
  if (kind != LinkKind::kNvlink) {
    // NCCL compares the whole message with its buffers' step.
    if (bytes < chunk) {
      chunk /= 4;
    } else if (bytes < 8 * chunk) {
      chunk /= 2;
    }
  }
  const double rate = std::min(shape.rate, path_rate) / channels;
  shape.fill_s = cost.fills * static_cast<double>(std::min(part, chunk)) / rate;
  return shape;
}

}  // namespace refit
