#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "plans/box.h"
#include "plans/dtype.h"
#include "plans/quant.h"

namespace refit {

// The plan: the contract between `refit`, which makes it, and `refit-exec`, which replays it. Plain
// data; ids are indices.
//
// A rank's memory holds three kinds of areas, each a box of one tensor with its own storage:
//   train    a shard of a tensor on the train side (read only),
//   gen      a shard of a tensor on the gen side (each element written exactly once),
//   staging  a slot: a dense box in the rank's staging memory, reusable once nothing needs it.
// A piece is a sub-box of one area. A message carries pieces, packed in order, from one rank to
// another; a message to oneself is a local copy. The sides may have different dtypes: a piece says
// what is on the wire, and an end whose memory has another dtype casts while it packs or unpacks.
// Quantised weights (plans/quant.h) are cast by the sender of a piece only, of whole blocks in one
// of its areas; their companions (scales) are tensors that no train side has, made of the weight
// they belong to. Messages of a rank that belong together form a step; a step begins when its waits
// are over and ends when all its messages have arrived (sends are not eager). Steps of one channel
// run in order, channels run concurrently.

/// Limits of the format. What one NCCL group keeps in order, and how many lanes a rank may run.
inline constexpr int kMaxPeersPerStep = 8;
inline constexpr int kMaxChannels = 4;

enum class Side : uint8_t { kTrain, kGen };
enum class Place : uint8_t { kTrain, kGen, kStaging };
enum class Lane : uint8_t { kNvlink, kNet, kAny };

/// A box of a tensor in a rank's local buffer: element (lo + i) lies at `offset` + sum(i[d] *
/// stride[d]), in elements.
struct Shard {
  Box box;
  int64_t offset = 0;
  Dims stride;
  bool operator==(const Shard&) const = default;
};

/// What each rank of a side holds of a tensor; tensors with equal shape and layout share one.
/// Sorted by rank; a rank that holds nothing is absent.
struct RankMap {
  std::vector<std::pair<int32_t, std::vector<Shard>>> shards;

  /// The rank's shards, or null.
  const std::vector<Shard>* find(int32_t rank) const;
  bool operator==(const RankMap&) const = default;
};

struct PlanTensor {
  std::string name;
  Dims shape;
  Dtype train_dtype = Dtype::kBf16;
  Dtype gen_dtype = Dtype::kBf16;
  int32_t train_map = -1;
  int32_t gen_map = -1;
  // Buffers that hold the shards; fused tensors share one, and then have one dtype. By default one
  // buffer of the tensor's own name. -1 only where there is no map.
  int32_t train_buffer = -1;
  int32_t gen_buffer = -1;
  // How the gen side's values are made where they are quantised. A companion names the weight it is
  // made of in `source`, has no train map, and has the weight's format; of the weight itself
  // (kData) `source` is -1.
  Format format = Format::kNone;
  Output output = Output::kData;
  int32_t source = -1;
  bool operator==(const PlanTensor&) const = default;
};

/// Where a rank runs.
struct PlanRank {
  bool train = false, gen = false;
  std::string node;  // host
  std::string nvlink_domain;
  int32_t gpu = -1;            // GPU of the fabric
  int32_t device = 0;          // index of the GPU in its node
  std::vector<int32_t> rails;  // rails of its own NICs
  bool operator==(const PlanRank&) const = default;
};

struct Channel {
  Lane lane = Lane::kAny;
  bool operator==(const Channel&) const = default;
};

/// A staged box: dense and row-major at byte `offset` of the rank's staging memory, `bytes` long,
/// in the tensor's train or gen dtype.
struct Slot {
  int32_t tensor = -1;
  int32_t box = -1;  // of Program::boxes
  int64_t offset = 0;
  int64_t bytes = 0;
  Dtype dtype = Dtype::kBf16;
  bool operator==(const Slot&) const = default;
};

/// A sub-box of one area of this rank. What a companion's sender has in train or staging memory is
/// the weight: `area` is then one of the weight's, and the box is made of the part of it that
/// source_box tells.
struct Piece {
  int32_t tensor = -1;
  int32_t box = -1;   // of Program::boxes
  int32_t area = -1;  // train, gen: index among the rank's shards; staging: index of Program::slots
  Place place = Place::kTrain;
  Dtype wire = Dtype::kBf16;
  bool operator==(const Piece&) const = default;
};

/// One end of a transfer: the other rank (or this one: a local copy) and the pieces [first, last)
/// of Program::pieces.
struct Message {
  int32_t peer = -1;
  int32_t first_piece = 0, last_piece = 0;
  bool operator==(const Message&) const = default;
};

/// The step (channel, step) of the same rank that has to end before this step begins.
struct Wait {
  int32_t channel = 0;
  int32_t step = 0;  // step id
  auto operator<=>(const Wait&) const = default;
};

/// A group of messages. Both ends of a transfer stand in steps of equal channel and id. `sends` are
/// messages[first_send, first_recv), `recvs` messages[first_recv, last_message); each in ascending
/// order of peers.
struct Step {
  int32_t id = 0;
  int32_t channel = 0;
  int32_t first_send = 0, first_recv = 0, last_message = 0;
  int32_t first_wait = 0, last_wait = 0;
  bool operator==(const Step&) const = default;
};

/// What one rank does. `steps` in order of (channel, id).
struct Program {
  std::vector<Box> boxes;
  std::vector<Slot> slots;
  std::vector<Piece> pieces;
  std::vector<Message> messages;
  std::vector<Wait> waits;
  std::vector<Step> steps;
  bool operator==(const Program&) const = default;
};

/// What the search promised. Seconds.
struct Prediction {
  double predicted_s = 0;  // simulated
  double estimated_s = 0;  // closed form
  double lower_bound_s = 0;
  std::string bound_reason;  // the cut or prices that give it
  bool operator==(const Prediction&) const = default;
};

/// Everything from which the plan was made, as text: the executor skips it; simulate, explain and
/// re-planning need nothing else. Names in use: "model", "train", "gen", "fabric", "cost",
/// "options", "bound" (the bound with the prices of links), and of plans of baselines "host_work".
using Inputs = std::vector<std::pair<std::string, std::string>>;

struct Plan {
  std::string strategy;
  uint64_t seed = 0;
  int64_t staging_bytes =
      0;                  // bound per rank: slots plus the packing of messages (see staging_use)
  int32_t max_peers = 0;  // bound on network peers per rank; 0: none
  std::vector<Channel> channels;
  std::vector<PlanRank> ranks;
  std::vector<std::string> buffers;
  std::vector<PlanTensor> tensors;
  std::vector<RankMap> maps;
  std::vector<Program> programs;  // by rank
  Prediction prediction;
  Inputs inputs;
  bool operator==(const Plan&) const = default;
};

/// The text of an input, or null.
const std::string* find_input(const Plan& plan, std::string_view name);

/// Ranks that have a GPU.
int64_t count_ranks(const Plan& plan);

/// "nvlink", "net", "any".
std::string_view lane_name(Lane lane);

/// Are the two ranks joined by NVLink (or one and the same)? Ranks whose NVLink domain has no name
/// are on their own.
bool same_domain(const Plan& plan, int32_t a, int32_t b);

/// One past the last element of the shard in its buffer.
int64_t shard_end(const Shard& shard);

/// Index of the step of a channel in `steps`, or -1.
int32_t find_step(const Program& program, int32_t channel, int32_t id);

/// The message of a step to (from) a peer, or null.
const Message* find_send(const Program& program, const Step& step, int32_t peer);
const Message* find_recv(const Program& program, const Step& step, int32_t peer);

/// The area that a piece is part of, as a Shard (offset in elements; for staging from the start of
/// the slot), its dtype, and the tensor that it holds: the piece's own, or the weight that the
/// piece is made of.
struct PieceArea {
  Shard shard;
  Dtype dtype = Dtype::kBf16;
  int32_t tensor = -1;
};
PieceArea find_area(const Plan& plan, int32_t rank, const Piece& piece);

/// The same without where its elements lie.
struct AreaView {
  const Box* box = nullptr;  // in the plan
  Dtype dtype = Dtype::kBf16;
  int32_t tensor = -1;
};
AreaView view_area(const Plan& plan, int32_t rank, const Piece& piece);
Shard piece_area(const Plan& plan, int32_t rank, const Piece& piece);

/// Does the piece have other values in memory than on the wire? And is it made of whole blocks (of
/// `area_box(piece)`)?
bool is_cast(const Plan& plan, int32_t rank, const Piece& piece);
bool is_quantised(const Plan& plan, int32_t rank, const Piece& piece);

/// The part of its area that a piece reads or writes: its box, or what a quantised one is made of.
Box area_box(const Plan& plan, int32_t rank, const Piece& piece);

/// Bytes of a piece on the wire, and of a message.
int64_t piece_bytes(const Program& program, const Piece& piece);
int64_t message_bytes(const Program& program, const Message& message);

/// What packing or unpacking a message moves through memory, in bytes each way: the mean of what it
/// reads and what it writes. That is message_bytes unless there are casts.
int64_t packed_bytes(const Plan& plan, int32_t rank, const Message& message);

/// True when the piece is one run of bytes in its area and needs no cast, so that it needs no
/// packing.
bool is_contiguous(const Plan& plan, int32_t rank, const Piece& piece);

/// A message is sent or received in place when it is a single contiguous piece, or a local copy;
/// else it goes through a packing buffer.
bool needs_packing(const Plan& plan, int32_t rank, const Message& message);

/// Staging memory of a rank, in bytes: the extent of its slots, plus for each channel the largest
/// sum of packed messages of one step.
struct StagingUse {
  int64_t slots = 0;
  int64_t packing = 0;
  int64_t total() const { return slots + packing; }
};
StagingUse staging_use(const Plan& plan, int32_t rank);

/// The total of the rank that uses most.
int64_t peak_staging(const Plan& plan);

/// Elements that a buffer needs on a rank: one past the last element of any shard in it.
int64_t buffer_elements(const Plan& plan, Side side, int32_t buffer, int32_t rank);

/// Totals over the plan. Local copies are no wire bytes.
struct PlanTotals {
  int64_t transfers = 0, copies = 0;
  int64_t bytes_total = 0, bytes_inter_domain = 0, bytes_intra_domain = 0, bytes_copied = 0;
  int64_t peak_staging_bytes = 0;
  int32_t max_peers = 0;  // most network peers of any rank
};
PlanTotals plan_totals(const Plan& plan);

}  // namespace refit
