#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "plans/plan.h"
#include "sim/model/model.h"

namespace refit {

/// Named axes over ranks, row-major: the last axis is the fastest. Mirrors torch's DeviceMesh.
struct Mesh {
  std::vector<std::string> axis;
  std::vector<int32_t> size;
  std::vector<int32_t> ranks;  // product of sizes
};

/// Per mesh axis: shard of a tensor dimension, or replicate. Mirrors DTensor's Placement.
struct Placement {
  int32_t dim = -1;    // -1: replicate
  int32_t pieces = 1;  // cut the dimension into so many first, then shard every piece: DTensor's
                       // _StridedShard with this split_factor
  std::vector<int64_t> blocks = {};  // instead: pieces of these extents
  int64_t padded = 0;                // shard as if the dimension had so many elements; 0: as it is
};

/// How a dimension of n elements is cut into k parts.
enum class Split : uint8_t {
  kEven,      // k divides n, or an error
  kChunk,     // torch.chunk: ceil(n/k) each, trailing parts short or empty
  kBalanced,  // torch.tensor_split: the first n mod k parts one longer
};

/// Part `index` of `parts` of n elements, as [lo, hi). kEven fails with `place` when it does not
/// divide.
std::pair<int64_t, int64_t> split_range(int64_t n, int64_t parts, int64_t index, Split split,
                                        const std::string& place);

/// Half-open ranges of one dimension, in the order in which a local buffer has them.
using Ranges = std::vector<std::pair<int64_t, int64_t>>;

/// Order of a local buffer in memory.
enum class Storage : uint8_t { kRowMajor, kColumnMajor };

/// The shards of one dense local buffer whose dimension d runs through ranges[d]: one for every
/// combination of ranges. Empty ranges give none.
std::vector<Shard> gather_shards(std::span<const Ranges> ranges, Storage storage);

/// What each rank of the mesh holds of a tensor of this shape, in one dense row-major buffer:
/// several shards where pieces of a strided placement do not touch; ranks that hold nothing are
/// left out. Axes that shard the same dimension cut it one after the other, first axis first.
RankMap make_map(const Dims& shape, const Mesh& mesh, std::span<const Placement> placements,
                 Split split, const std::string& place, Storage storage = Storage::kRowMajor);

/// Where a layout lets a tensor be cast, and whether at all.
enum class CastAt : uint8_t { kNowhere, kAnywhere, kOnSend, kOnReceive };

/// In which dtype a side has a tensor.
struct Precision {
  Dtype dtype = Dtype::kBf16;
  CastAt cast = CastAt::kNowhere;
  bool operator==(const Precision&) const = default;
};

/// How a side has its weights quantised.
struct Quantisation {
  Format format = Format::kNone;
  std::vector<std::string> skip;  // patterns of tensors that keep the model's dtype
  bool whole_scales = false;      // every rank with a part of a weight has all of its scales
  bool operator==(const Quantisation&) const = default;
};

/// One side: what every rank holds of every tensor of a model.
struct Layout {
  std::string spec;                 // as given
  std::vector<int32_t> ranks;       // every rank of the side, ascending; some may hold nothing
  std::vector<RankMap> maps;        // shared by tensors of equal shape and placement
  std::vector<int32_t> tensor_map;  // by tensor of the model
  std::vector<std::string> notes;   // choices made for the user, to be shown
  // By tensor of the model the buffer in which its shards lie, which fused tensors share. Empty:
  // every tensor has its own.
  std::vector<std::string> tensor_buffer = {};
  std::vector<Precision> precision = {};  // by tensor of the model; empty: all as in the model
  Quantisation quantisation = {};
};

/// Reads a layout: "megatron:tp=4,pp=2,...", "vllm:tp=8,dp=2,...", "sglang:...", "fsdp:world=8",
/// several of them with "+" between (engines of different layouts), the path of a NeMo RL recipe,
/// or, as a path or as its text, a layout file (docs/layouts.md), an NCCL M2N system JSON or a NeMo
/// RL refit_info JSON (of recipes and these two `side` tells which half). Grids as in DESIGN.md
/// section 3. `first_rank` is the rank number of the side's first rank where the text has no
/// `ranks`. Every error names the layout, the key or tensor, what was found and what was expected.
Layout load_layout(const std::string& spec, const Model& model, Side side, int32_t first_rank);

/// Text from which load_layout gives the same layout anywhere: `spec` itself, the inline layout
/// that a recipe comes to, or the content of the file it names.
std::string resolve_layout(const std::string& spec, Side side);

}  // namespace refit
