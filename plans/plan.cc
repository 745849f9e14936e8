#include "plans/plan.h"

#include <algorithm>
#include <array>
#include <set>
#include <utility>

#include "base/error.h"

namespace refit {
namespace {

const Box& box_of(const Program& program, int32_t box) {
  return program.boxes[static_cast<size_t>(box)];
}

const Program& program_of(const Plan& plan, int32_t rank) {
  return plan.programs[static_cast<size_t>(rank)];
}

// Of messages [first, last), in ascending order of peers, the one with this peer.
const Message* find_message(const Program& program, int32_t first, int32_t last, int32_t peer) {
  const auto begin = program.messages.begin();
  const auto at = std::lower_bound(begin + first, begin + last, peer,
                                   [](const Message& m, int32_t p) { return m.peer < p; });
  return at != begin + last && at->peer == peer ? &*at : nullptr;
}

}  // namespace

const std::vector<Shard>* RankMap::find(int32_t rank) const {
  const auto at = std::lower_bound(shards.begin(), shards.end(), rank,
                                   [](const auto& entry, int32_t r) { return entry.first < r; });
  return at != shards.end() && at->first == rank ? &at->second : nullptr;
}

const std::string* find_input(const Plan& plan, std::string_view name) {
  const auto found = std::ranges::find(plan.inputs, name, &Inputs::value_type::first);
  return found == plan.inputs.end() ? nullptr : &found->second;
}

int64_t count_ranks(const Plan& plan) {
  return std::ranges::count_if(plan.ranks, [](const PlanRank& rank) { return rank.gpu >= 0; });
}

std::string_view lane_name(Lane lane) {
  switch (lane) {
    case Lane::kNvlink:
      return "nvlink";
    case Lane::kNet:
      return "net";
    case Lane::kAny:
      return "any";
  }
  return "";
}

bool same_domain(const Plan& plan, int32_t a, int32_t b) {
  if (a == b) return true;
  const std::string& domain = plan.ranks[static_cast<size_t>(a)].nvlink_domain;
  return !domain.empty() && domain == plan.ranks[static_cast<size_t>(b)].nvlink_domain;
}

int32_t find_step(const Program& program, int32_t channel, int32_t id) {
  const auto at = std::lower_bound(
      program.steps.begin(), program.steps.end(), std::pair(channel, id),
      [](const Step& step, const auto& key) { return std::pair(step.channel, step.id) < key; });
  if (at == program.steps.end() || at->channel != channel || at->id != id) return -1;
  return static_cast<int32_t>(at - program.steps.begin());
}

const Message* find_send(const Program& program, const Step& step, int32_t peer) {
  return find_message(program, step.first_send, step.first_recv, peer);
}

const Message* find_recv(const Program& program, const Step& step, int32_t peer) {
  return find_message(program, step.first_recv, step.last_message, peer);
}

PieceArea find_area(const Plan& plan, int32_t rank, const Piece& piece) {
  const auto area = static_cast<size_t>(piece.area);
  int32_t id = piece.tensor;
  if (piece.place == Place::kStaging) {
    const Program& program = program_of(plan, rank);
    const Slot& slot = program.slots[area];
    const Box& box = box_of(program, slot.box);
    return {{box, 0, dense_strides(box.extents())}, slot.dtype, slot.tensor};
  }
  const bool train = piece.place == Place::kTrain;
  const int32_t source = plan.tensors[static_cast<size_t>(id)].source;
  if (train && source >= 0) id = source;
  const PlanTensor& tensor = plan.tensors[static_cast<size_t>(id)];
  const int32_t map = train ? tensor.train_map : tensor.gen_map;
  const std::vector<Shard>* shards = plan.maps[static_cast<size_t>(map)].find(rank);
  REFIT_CHECK(shards != nullptr && area < shards->size());
  return {(*shards)[area], train ? tensor.train_dtype : tensor.gen_dtype, id};
}

Shard piece_area(const Plan& plan, int32_t rank, const Piece& piece) {
  return find_area(plan, rank, piece).shard;
}

namespace {

bool is_cast(const Piece& piece, const PieceArea& area) {
  return piece.tensor != area.tensor || piece.wire != area.dtype;
}

bool is_quantised(const PlanTensor& tensor, const Piece& piece, const PieceArea& area) {
  return tensor.format != Format::kNone && is_cast(piece, area);
}

Box area_box(const Plan& plan, const Box& box, const Piece& piece, const PieceArea& area) {
  const PlanTensor& tensor = plan.tensors[static_cast<size_t>(piece.tensor)];
  if (!is_quantised(tensor, piece, area)) return box;
  return source_box(tensor.format, tensor.output,
                    plan.tensors[static_cast<size_t>(area.tensor)].shape, box);
}

}  // namespace

bool is_cast(const Plan& plan, int32_t rank, const Piece& piece) {
  return is_cast(piece, find_area(plan, rank, piece));
}

bool is_quantised(const Plan& plan, int32_t rank, const Piece& piece) {
  return is_quantised(plan.tensors[static_cast<size_t>(piece.tensor)], piece,
                      find_area(plan, rank, piece));
}

Box area_box(const Plan& plan, int32_t rank, const Piece& piece) {
  return area_box(plan, box_of(program_of(plan, rank), piece.box), piece,
                  find_area(plan, rank, piece));
}

int64_t piece_bytes(const Program& program, const Piece& piece) {
  return dtype_bytes(piece.wire, box_of(program, piece.box).volume());
}

int64_t message_bytes(const Program& program, const Message& message) {
  int64_t bytes = 0;
  for (int32_t piece = message.first_piece; piece < message.last_piece; ++piece) {
    bytes += piece_bytes(program, program.pieces[static_cast<size_t>(piece)]);
  }
  return bytes;
}

int64_t packed_bytes(const Plan& plan, int32_t rank, const Message& message) {
  const Program& program = program_of(plan, rank);
  int64_t bytes = 0;
  for (int32_t index = message.first_piece; index < message.last_piece; ++index) {
    const Piece& piece = program.pieces[static_cast<size_t>(index)];
    const int64_t wire = piece_bytes(program, piece);
    const PieceArea area = find_area(plan, rank, piece);
    if (!is_cast(piece, area)) {
      bytes += wire;
      continue;
    }
    // Data is read once: finding a block's largest value is taken to leave the block in cache.
    const Box& box = box_of(program, piece.box);
    const int64_t elements =
        piece.tensor == area.tensor ? box.volume() : area_box(plan, box, piece, area).volume();
    bytes += (wire + elements * dtype_bits(area.dtype) / 8) / 2;
  }
  return bytes;
}

bool is_contiguous(const Plan& plan, int32_t rank, const Piece& piece) {
  const PieceArea found = find_area(plan, rank, piece);
  if (is_cast(piece, found)) return false;
  const Shard& area = found.shard;
  const Box& box = box_of(program_of(plan, rank), piece.box);
  int64_t run = 1;
  for (int dim = box.dims() - 1; dim >= 0; --dim) {
    if (box.extent(dim) == 1) continue;
    if (area.stride[dim] != run) return false;
    run *= box.extent(dim);
  }
  return true;
}

bool needs_packing(const Plan& plan, int32_t rank, const Message& message) {
  const Program& program = program_of(plan, rank);
  if (message.peer == rank) return false;
  if (message.last_piece - message.first_piece != 1) return true;
  return !is_contiguous(plan, rank, program.pieces[static_cast<size_t>(message.first_piece)]);
}

StagingUse staging_use(const Plan& plan, int32_t rank) {
  const Program& program = program_of(plan, rank);
  StagingUse use;
  for (const Slot& slot : program.slots) use.slots = std::max(use.slots, slot.offset + slot.bytes);
  std::array<int64_t, kMaxChannels> packing{};
  for (const Step& step : program.steps) {
    int64_t bytes = 0;
    for (int32_t m = step.first_send; m < step.last_message; ++m) {
      const Message& message = program.messages[static_cast<size_t>(m)];
      if (needs_packing(plan, rank, message)) bytes += message_bytes(program, message);
    }
    int64_t& most = packing[static_cast<size_t>(step.channel)];
    most = std::max(most, bytes);
  }
  for (const int64_t bytes : packing) use.packing += bytes;
  return use;
}

int64_t peak_staging(const Plan& plan) {
  int64_t peak = 0;
  for (int32_t rank = 0; rank < std::ssize(plan.programs); ++rank)
    peak = std::max(peak, staging_use(plan, rank).total());
  return peak;
}

int64_t buffer_elements(const Plan& plan, Side side, int32_t buffer, int32_t rank) {
  int64_t elements = 0;
  for (const PlanTensor& tensor : plan.tensors) {
    const bool train = side == Side::kTrain;
    if ((train ? tensor.train_buffer : tensor.gen_buffer) != buffer) continue;
    const int32_t map = train ? tensor.train_map : tensor.gen_map;
    if (map < 0) continue;
    const std::vector<Shard>* shards = plan.maps[static_cast<size_t>(map)].find(rank);
    if (shards == nullptr) continue;
    for (const Shard& shard : *shards) elements = std::max(elements, shard_end(shard));
  }
  return elements;
}

int64_t shard_end(const Shard& shard) {
  if (shard.box.empty()) return 0;
  int64_t last = shard.offset;
  for (int dim = 0; dim < shard.box.dims(); ++dim) {
    last += (shard.box.extent(dim) - 1) * shard.stride[dim];
  }
  return last + 1;
}

PlanTotals plan_totals(const Plan& plan) {
  PlanTotals totals;
  for (int32_t rank = 0; rank < std::ssize(plan.programs); ++rank) {
    const Program& program = program_of(plan, rank);
    std::set<int32_t> peers;
    for (const Step& step : program.steps) {
      for (int32_t m = step.first_send; m < step.last_message; ++m) {
        const Message& message = program.messages[static_cast<size_t>(m)];
        const bool inside = same_domain(plan, rank, message.peer);
        if (!inside) peers.insert(message.peer);
        if (m >= step.first_recv) continue;  // every transfer has one sender
        const int64_t bytes = message_bytes(program, message);
        if (message.peer == rank) {
          ++totals.copies;
          totals.bytes_copied += bytes;
        } else {
          ++totals.transfers;
          (inside ? totals.bytes_intra_domain : totals.bytes_inter_domain) += bytes;
        }
      }
    }
    totals.max_peers = std::max(totals.max_peers, static_cast<int32_t>(peers.size()));
  }
  totals.peak_staging_bytes = peak_staging(plan);
  totals.bytes_total = totals.bytes_inter_domain + totals.bytes_intra_domain;
  return totals;
}

}  // namespace refit
