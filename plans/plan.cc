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
  if (shards.empty()) return nullptr;
  // Where the ranks have no gaps, and mostly they have none, one look finds it.
  const int64_t guess = int64_t{rank} - shards.front().first;
  if (guess >= 0 && guess < std::ssize(shards)) {
    const auto& entry = shards[static_cast<size_t>(guess)];
    if (entry.first == rank) return &entry.second;
  }
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

namespace {

// A piece in train or gen memory: the tensor that lies there, and its shard.
struct Holding {
  int32_t tensor = -1;
  const Shard* shard = nullptr;
};

Holding find_holding(const Plan& plan, int32_t rank, const Piece& piece) {
  const bool train = piece.place == Place::kTrain;
  const PlanTensor* tensor = &plan.tensors[static_cast<size_t>(piece.tensor)];
  Holding holding{.tensor = piece.tensor};
  if (train && tensor->source >= 0) {
    holding.tensor = tensor->source;
    tensor = &plan.tensors[static_cast<size_t>(holding.tensor)];
  }
  const int32_t map = train ? tensor->train_map : tensor->gen_map;
  const std::vector<Shard>* shards = plan.maps[static_cast<size_t>(map)].find(rank);
  const auto area = static_cast<size_t>(piece.area);
  REFIT_CHECK(shards != nullptr && area < shards->size());
  holding.shard = &(*shards)[area];
  return holding;
}

}  // namespace

AreaView view_area(const Plan& plan, int32_t rank, const Piece& piece) {
  if (piece.place == Place::kStaging) {
    const Program& program = program_of(plan, rank);
    const Slot& slot = program.slots[static_cast<size_t>(piece.area)];
    return {&box_of(program, slot.box), slot.dtype, slot.tensor};
  }
  const Holding holding = find_holding(plan, rank, piece);
  const PlanTensor& tensor = plan.tensors[static_cast<size_t>(holding.tensor)];
  return {&holding.shard->box, piece.place == Place::kTrain ? tensor.train_dtype : tensor.gen_dtype,
          holding.tensor};
}

PieceArea find_area(const Plan& plan, int32_t rank, const Piece& piece) {
  const AreaView view = view_area(plan, rank, piece);
  if (piece.place == Place::kStaging)
    return {{*view.box, 0, dense_strides(view.box->extents())}, view.dtype, view.tensor};
  return {*find_holding(plan, rank, piece).shard, view.dtype, view.tensor};
}

Shard piece_area(const Plan& plan, int32_t rank, const Piece& piece) {
  return find_area(plan, rank, piece).shard;
}

namespace {

bool is_cast(const Piece& piece, const AreaView& area) {
  return piece.tensor != area.tensor || piece.wire != area.dtype;
}

// Without regard to the piece: false where all that holds the tensor has the same dtype.
bool may_be_cast(const PlanTensor& tensor) {
  return tensor.train_dtype != tensor.gen_dtype || tensor.source >= 0;
}

bool is_quantised(const Plan& plan, const Piece& piece, const AreaView& area) {
  return is_cast(piece, area) &&
         plan.tensors[static_cast<size_t>(piece.tensor)].format != Format::kNone;
}

Box area_box(const Plan& plan, const Box& box, const Piece& piece, const AreaView& area) {
  if (!is_quantised(plan, piece, area)) return box;
  const PlanTensor& tensor = plan.tensors[static_cast<size_t>(piece.tensor)];
  return source_box(tensor.format, tensor.output,
                    plan.tensors[static_cast<size_t>(area.tensor)].shape, box);
}

}  // namespace

bool is_cast(const Plan& plan, int32_t rank, const Piece& piece) {
  return is_cast(piece, view_area(plan, rank, piece));
}

bool is_quantised(const Plan& plan, int32_t rank, const Piece& piece) {
  return is_quantised(plan, piece, view_area(plan, rank, piece));
}

Box area_box(const Plan& plan, int32_t rank, const Piece& piece) {
  return area_box(plan, box_of(program_of(plan, rank), piece.box), piece,
                  view_area(plan, rank, piece));
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
    if (!may_be_cast(plan.tensors[static_cast<size_t>(piece.tensor)])) {
      bytes += wire;
      continue;
    }
    const AreaView area = view_area(plan, rank, piece);
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
  const AreaView area = view_area(plan, rank, piece);
  if (is_cast(piece, area)) return false;
  const Box& box = box_of(program_of(plan, rank), piece.box);
  const Dims stride = piece.place == Place::kStaging
                          ? dense_strides(area.box->extents())
                          : find_holding(plan, rank, piece).shard->stride;
  int64_t run = 1;
  for (int dim = box.dims() - 1; dim >= 0; --dim) {
    if (box.extent(dim) == 1) continue;
    if (stride[dim] != run) return false;
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
