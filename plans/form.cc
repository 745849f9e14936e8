#include "plans/form.h"

#include <fmt/core.h>

#include <utility>

#include "base/error.h"

namespace refit {
namespace {

template <typename T>
bool is_index(int32_t id, const std::vector<T>& of) {
  return id >= 0 && id < std::ssize(of);
}

bool is_range(int32_t first, int32_t last, size_t size) {
  return first >= 0 && first <= last && std::cmp_less_equal(last, size);
}

// Do the dimensions multiply to at most kMaxElements?
bool is_shape(const Dims& shape) {
  if (shape.count < 0 || shape.count > kMaxDims) return false;
  int64_t product = 1;
  for (int dim = 0; dim < shape.count; ++dim) {
    if (shape[dim] < 0 || shape[dim] > kMaxElements) return false;
    if (__builtin_mul_overflow(product, shape[dim], &product)) return false;
  }
  return product <= kMaxElements;
}

bool is_box_in(const Dims& shape, const Box& box) {
  if (box.lo.count != shape.count || box.hi.count != shape.count) return false;
  for (int dim = 0; dim < shape.count; ++dim) {
    if (box.lo[dim] < 0 || box.lo[dim] > box.hi[dim] || box.hi[dim] > shape[dim]) return false;
  }
  return true;
}

// Two 4-bit elements share a byte: runs along the last dimension have to start and end between
// bytes.
bool is_byte_aligned(Dtype dtype, const Box& box) {
  if (dtype_bits(dtype) >= 8) return true;
  const int last = box.dims() - 1;
  return last >= 0 && box.lo[last] % 2 == 0 && box.hi[last] % 2 == 0;
}

// Does the shard end within kMaxElements? Its box lies in a shape already.
bool is_storage(const Shard& shard) {
  if (shard.stride.count != shard.box.dims()) return false;
  if (shard.offset < 0 || shard.offset > kMaxElements) return false;
  int64_t last = shard.offset;
  for (int dim = 0; dim < shard.box.dims(); ++dim) {
    int64_t step = 0;
    if (shard.stride[dim] < 0) return false;
    if (shard.box.extent(dim) == 0) return true;
    if (__builtin_mul_overflow(shard.stride[dim], shard.box.extent(dim) - 1, &step)) return false;
    if (__builtin_add_overflow(last, step, &last) || last >= kMaxElements) return false;
  }
  return true;
}

bool is_byte_aligned(Dtype dtype, const Shard& shard) {
  if (dtype_bits(dtype) >= 8) return true;
  if (!is_byte_aligned(dtype, shard.box) || shard.offset % 2 != 0) return false;
  const int last = shard.box.dims() - 1;
  for (int dim = 0; dim < last; ++dim) {
    if (shard.stride[dim] % 2 != 0) return false;
  }
  return shard.stride[last] == 1;
}

std::string find_malformed_map(const Plan& plan, size_t index) {
  int32_t previous = -1;
  for (const auto& [rank, shards] : plan.maps[index].shards) {
    if (rank <= previous || !is_index(rank, plan.ranks)) {
      return fmt::format("map {}: rank {} is unknown or out of order", index, rank);
    }
    previous = rank;
    for (const Shard& shard : shards) {
      if (shard.box.lo.count != shard.stride.count || !is_shape(shard.box.hi) ||
          !is_box_in(shard.box.hi, shard.box) || !is_storage(shard)) {
        return fmt::format("map {}: rank {} has a shard that is no box", index, rank);
      }
    }
  }
  return {};
}

std::string find_malformed_side(const Plan& plan, const PlanTensor& tensor, Side side) {
  const bool train = side == Side::kTrain;
  const int32_t map = train ? tensor.train_map : tensor.gen_map;
  const int32_t buffer = train ? tensor.train_buffer : tensor.gen_buffer;
  const Dtype dtype = train ? tensor.train_dtype : tensor.gen_dtype;
  const std::string place =
      fmt::format("tensor '{}', {} side", tensor.name, train ? "train" : "gen");
  if (static_cast<int>(dtype) >= kDtypeCount) return place + ": unknown dtype";
  if (map == -1 && (buffer == -1 || is_index(buffer, plan.buffers))) return {};
  if (!is_index(map, plan.maps)) return fmt::format("{}: no map {}", place, map);
  if (!is_index(buffer, plan.buffers)) return fmt::format("{}: no buffer {}", place, buffer);
  for (const auto& [rank, shards] : plan.maps[static_cast<size_t>(map)].shards) {
    for (const Shard& shard : shards) {
      if (is_box_in(tensor.shape, shard.box) && is_byte_aligned(dtype, shard)) continue;
      return fmt::format("{}: shard {} of rank {} does not fit {} {}", place, print_box(shard.box),
                         rank, dtype_name(dtype), print_box(whole(tensor.shape)));
    }
  }
  return {};
}

// What a tensor's format and the dtypes of its sides have to do with each other.
std::string find_malformed_format(const Plan& plan, const PlanTensor& tensor) {
  const std::string place = fmt::format("tensor '{}'", tensor.name);
  if (static_cast<int>(tensor.format) >= kFormatCount) return place + ": unknown format";
  if (static_cast<int>(tensor.output) >= kOutputCount) return place + ": unknown output";
  if (tensor.format == Format::kNone) {
    if (tensor.output != Output::kData || tensor.source != -1) {
      return place + ": a companion without a format";
    }
    if (tensor.train_dtype == tensor.gen_dtype) return {};
    if (is_convertible(tensor.train_dtype, tensor.gen_dtype)) return {};
    return fmt::format("{}: train dtype {} cannot be converted to gen dtype {}", place,
                       dtype_name(tensor.train_dtype), dtype_name(tensor.gen_dtype));
  }
  const bool data = tensor.output == Output::kData;
  if (data != (tensor.source == -1) || (!data && !is_index(tensor.source, plan.tensors)) ||
      !has_output(tensor.format, tensor.output)) {
    return fmt::format("{}: no {} of format {}", place, output_name(tensor.output),
                       format_name(tensor.format));
  }
  if (tensor.gen_dtype != output_dtype(tensor.format, tensor.output)) {
    return fmt::format("{}: gen dtype {}, {} of format {} is {}", place,
                       dtype_name(tensor.gen_dtype), output_name(tensor.output),
                       format_name(tensor.format),
                       dtype_name(output_dtype(tensor.format, tensor.output)));
  }
  if (data) {
    if (tensor.shape.count < 2 || !is_quantisable(tensor.train_dtype)) {
      return fmt::format("{}: {} of {} dimensions cannot be quantised", place,
                         dtype_name(tensor.train_dtype), tensor.shape.count);
    }
    return {};
  }
  const PlanTensor& source = plan.tensors[static_cast<size_t>(tensor.source)];
  if (source.format != tensor.format || source.output != Output::kData || tensor.train_map != -1 ||
      source.shape.count < 2 ||
      tensor.shape != output_shape(tensor.format, tensor.output, source.shape)) {
    return fmt::format("{}: no companion of '{}'", place, source.name);
  }
  return {};
}

std::string find_malformed_slot(const Plan& plan, const Program& program, const Slot& slot) {
  if (!is_index(slot.tensor, plan.tensors)) return fmt::format("no tensor {}", slot.tensor);
  if (!is_index(slot.box, program.boxes)) return fmt::format("no box {}", slot.box);
  const PlanTensor& tensor = plan.tensors[static_cast<size_t>(slot.tensor)];
  const Box& box = program.boxes[static_cast<size_t>(slot.box)];
  if (slot.dtype != tensor.gen_dtype && (slot.dtype != tensor.train_dtype || tensor.source >= 0)) {
    return fmt::format("dtype {} for tensor '{}', which is neither side's",
                       static_cast<int>(slot.dtype), tensor.name);
  }
  if (!is_box_in(tensor.shape, box) || box.empty() || !is_byte_aligned(slot.dtype, box)) {
    return fmt::format("box {} does not fit tensor '{}'", print_box(box), tensor.name);
  }
  const int64_t bytes = dtype_bytes(slot.dtype, box.volume());
  if (slot.bytes != bytes) {
    return fmt::format("{} bytes for {} of tensor '{}', which takes {}", slot.bytes, print_box(box),
                       tensor.name, bytes);
  }
  if (slot.offset < 0 || slot.offset > kMaxRankBytes || bytes > kMaxRankBytes) {
    return fmt::format("offset {} with {} bytes is out of range", slot.offset, bytes);
  }
  return {};
}

std::string find_malformed_piece(const Plan& plan, int32_t rank, const Piece& piece) {
  const Program& program = plan.programs[static_cast<size_t>(rank)];
  if (!is_index(piece.tensor, plan.tensors)) return fmt::format("no tensor {}", piece.tensor);
  if (!is_index(piece.box, program.boxes)) return fmt::format("no box {}", piece.box);
  if (static_cast<int>(piece.wire) >= kDtypeCount) return "unknown wire dtype";
  if (piece.place > Place::kStaging) return "unknown place";
  const PlanTensor& tensor = plan.tensors[static_cast<size_t>(piece.tensor)];
  const Box& box = program.boxes[static_cast<size_t>(piece.box)];
  const auto problem = [&](const std::string& what) {
    return fmt::format("{} of tensor '{}': {}", print_box(box), tensor.name, what);
  };
  if (!is_box_in(tensor.shape, box) || box.empty() || !is_byte_aligned(piece.wire, box)) {
    return problem("the box does not fit");
  }
  if (piece.wire != tensor.gen_dtype && (piece.wire != tensor.train_dtype || tensor.source >= 0)) {
    return problem(
        fmt::format("{} on the wire, which is neither side's dtype", dtype_name(piece.wire)));
  }
  if (piece.place == Place::kStaging) {
    if (!is_index(piece.area, program.slots)) {
      return problem(fmt::format("the rank has no slot {}", piece.area));
    }
    const Slot& slot = program.slots[static_cast<size_t>(piece.area)];
    const PlanTensor& staged = plan.tensors[static_cast<size_t>(slot.tensor)];
    if (slot.tensor != piece.tensor &&
        (slot.tensor != tensor.source || slot.dtype != staged.train_dtype)) {
      return problem(fmt::format("slot {} is for another tensor", piece.area));
    }
  } else {
    const bool made = piece.place == Place::kTrain && tensor.source >= 0;
    const PlanTensor& held = made ? plan.tensors[static_cast<size_t>(tensor.source)] : tensor;
    const int32_t map = piece.place == Place::kTrain ? held.train_map : held.gen_map;
    const std::vector<Shard>* shards =
        map < 0 ? nullptr : plan.maps[static_cast<size_t>(map)].find(rank);
    if (shards == nullptr || !is_index(piece.area, *shards)) {
      return problem(fmt::format("the rank has no shard {}", piece.area));
    }
  }
  const Box& area = *view_area(plan, rank, piece).box;
  const bool in_blocks = tensor.format != Format::kNone && is_quantised(plan, rank, piece);
  const Box part = in_blocks ? area_box(plan, rank, piece) : box;
  if (contains(area, part)) return {};
  const char* kind = piece.place == Place::kStaging ? "slot" : "shard";
  if (part == box) return problem(fmt::format("not within the {}'s {}", kind, print_box(area)));
  return problem(fmt::format("is made of whole {} blocks, {}, not within the {}'s {}",
                             format_name(tensor.format), print_box(part), kind, print_box(area)));
}

}  // namespace

std::string find_malformed(const Plan& plan) {
  if (std::ssize(plan.ranks) > kMaxRanks) return fmt::format("{} ranks", plan.ranks.size());
  if (std::ssize(plan.channels) > kMaxChannels) {
    return fmt::format("{} channels, at most {} are allowed", plan.channels.size(), kMaxChannels);
  }
  for (const Channel& channel : plan.channels) {
    if (channel.lane > Lane::kAny) return "a channel of unknown lane";
  }
  if (plan.staging_bytes < 0 || plan.max_peers < 0) return "a negative limit";
  for (size_t map = 0; map < plan.maps.size(); ++map) {
    std::string what = find_malformed_map(plan, map);
    if (!what.empty()) return what;
  }
  for (const PlanTensor& tensor : plan.tensors) {
    if (!is_shape(tensor.shape)) {
      return fmt::format("tensor '{}': dimensions out of range", tensor.name);
    }
    for (const Side side : {Side::kTrain, Side::kGen}) {
      std::string what = find_malformed_side(plan, tensor, side);
      if (!what.empty()) return what;
    }
  }
  for (const PlanTensor& tensor : plan.tensors) {
    std::string what = find_malformed_format(plan, tensor);
    if (!what.empty()) return what;
  }
  return {};
}

std::string find_malformed(const Plan& plan, int32_t rank) {
  REFIT_CHECK(is_index(rank, plan.programs) && is_index(rank, plan.ranks));
  const Program& program = plan.programs[static_cast<size_t>(rank)];
  for (size_t slot = 0; slot < program.slots.size(); ++slot) {
    const std::string what = find_malformed_slot(plan, program, program.slots[slot]);
    if (!what.empty()) return fmt::format("slot {}: {}", slot, what);
  }
  std::vector<int64_t> bytes_before = {0};  // of each piece
  bytes_before.reserve(program.pieces.size() + 1);
  for (size_t piece = 0; piece < program.pieces.size(); ++piece) {
    const std::string what = find_malformed_piece(plan, rank, program.pieces[piece]);
    if (!what.empty()) return fmt::format("piece {}: {}", piece, what);
    const int64_t bytes = piece_bytes(program, program.pieces[piece]);
    if (bytes > kMaxRankBytes - bytes_before.back()) return "too many bytes in its pieces";
    bytes_before.push_back(bytes_before.back() + bytes);
  }
  for (size_t index = 0; index < program.messages.size(); ++index) {
    const Message& message = program.messages[index];
    if (!is_index(message.peer, plan.ranks)) {
      return fmt::format("message {}: no rank {}", index, message.peer);
    }
    if (!is_range(message.first_piece, message.last_piece, program.pieces.size()) ||
        message.first_piece == message.last_piece) {
      return fmt::format("message {}: no pieces [{}, {})", index, message.first_piece,
                         message.last_piece);
    }
  }
  int64_t bytes = 0;
  for (size_t index = 0; index < program.steps.size(); ++index) {
    const Step& step = program.steps[index];
    if (!is_index(step.channel, plan.channels)) {
      return fmt::format("step {}: no channel {}", index, step.channel);
    }
    if (step.id < 0) return fmt::format("step {}: id {} is negative", index, step.id);
    if (index > 0 && std::pair(step.channel, step.id) <=
                         std::pair(program.steps[index - 1].channel, program.steps[index - 1].id)) {
      return fmt::format("step {}: (channel {}, step {}) is out of order", index, step.channel,
                         step.id);
    }
    if (!is_range(step.first_send, step.first_recv, program.messages.size()) ||
        !is_range(step.first_recv, step.last_message, program.messages.size()) ||
        !is_range(step.first_wait, step.last_wait, program.waits.size())) {
      return fmt::format("channel {}, step {}: no such messages or waits", step.channel, step.id);
    }
    for (int32_t m = step.first_send; m < step.last_message; ++m) {
      const Message& message = program.messages[static_cast<size_t>(m)];
      bytes += bytes_before[static_cast<size_t>(message.last_piece)] -
               bytes_before[static_cast<size_t>(message.first_piece)];
      if (bytes > kMaxRankBytes) return "too many bytes in its messages";
    }
  }
  return {};
}

}  // namespace refit
