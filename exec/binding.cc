#include "exec/binding.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string>

#include "base/error.h"

namespace refit {

namespace {

const std::vector<Shard>* find_shards(const Plan& plan, int32_t rank, Side side, int32_t tensor) {
  const PlanTensor& entry = plan.tensors[static_cast<size_t>(tensor)];
  const int32_t map = side == Side::kTrain ? entry.train_map : entry.gen_map;
  return map < 0 ? nullptr : plan.maps[static_cast<size_t>(map)].find(rank);
}

const char* side_name(Side side) { return side == Side::kTrain ? "train" : "gen"; }

}  // namespace

int32_t find_tensor(const Plan& plan, std::string_view name) {
  const auto at = std::find_if(plan.tensors.begin(), plan.tensors.end(),
                               [&](const PlanTensor& tensor) { return tensor.name == name; });
  if (at == plan.tensors.end()) fail("tensor", quote(name), "a tensor of the plan");
  return static_cast<int32_t>(at - plan.tensors.begin());
}

void add_binding(const Plan& plan, int32_t rank, Side side, int32_t tensor, int32_t shard,
                 std::byte* data, std::string_view dtype, std::span<const int64_t> strides,
                 Bindings& bindings) {
  const PlanTensor& entry = plan.tensors[static_cast<size_t>(tensor)];
  const std::string place = fmt::format("rank {}, {} tensor {}", rank, side_name(side), entry.name);
  const std::vector<Shard>* shards = find_shards(plan, rank, side, tensor);
  const int32_t count = shards == nullptr ? 0 : static_cast<int32_t>(shards->size());
  if (shard < 0 || shard >= count) {
    fail(place, fmt::format("shard {}", shard),
         count == 0 ? "none: the rank holds nothing of it" : fmt::format("0..{}", count - 1));
  }
  if (data == nullptr) fail(place, "no address", "that of the shard's first element");
  const Dtype planned = side == Side::kTrain ? entry.train_dtype : entry.gen_dtype;
  if (!dtype.empty() && parse_dtype(dtype, place) != planned) {
    fail(place, std::string(dtype), std::string(dtype_name(planned)));
  }
  BoundShard bound;
  bound.data = data;
  const Box& box = (*shards)[static_cast<size_t>(shard)].box;
  bound.stride = strides.empty() ? dense_strides(box.extents()) : Dims(strides);
  if (bound.stride.count != box.dims()) {
    fail(place, fmt::format("{} strides", bound.stride.count), fmt::format("{}", box.dims()));
  }
  for (int d = 0; d < box.dims(); ++d) {
    if (bound.stride[d] < 0 || (bound.stride[d] == 0 && box.extent(d) > 1)) {
      fail(place, fmt::format("a stride of {}", bound.stride[d]), "positive ones");
    }
  }
  (side == Side::kTrain ? bindings.train : bindings.gen)[{tensor, shard}] = bound;
}

Executor::Buffers apply_bindings(Plan& plan, Backend& backend, const Bindings& bindings) {
  const int32_t rank = backend.rank();
  struct Bound {
    Side side;
    int32_t tensor;
    RankMap map;
    std::byte* base;
  };
  std::vector<Bound> list;
  for (const Side side : {Side::kTrain, Side::kGen}) {
    const auto& of_side = side == Side::kTrain ? bindings.train : bindings.gen;
    for (auto at = of_side.begin(); at != of_side.end();) {
      const int32_t tensor = at->first.first;
      PlanTensor& entry = plan.tensors[static_cast<size_t>(tensor)];
      const std::string place =
          fmt::format("rank {}, {} tensor {}", rank, side_name(side), entry.name);
      const int64_t bits = dtype_bits(side == Side::kTrain ? entry.train_dtype : entry.gen_dtype);
      std::vector<Shard> shards = *find_shards(plan, rank, side, tensor);
      std::byte* base = at->second.data;
      size_t found = 0;
      for (; at != of_side.end() && at->first.first == tensor; ++at, ++found) {
        Shard& shard = shards[static_cast<size_t>(at->first.second)];
        const int64_t apart = (at->second.data - base) * 8;
        if (apart % bits != 0) {
          fail(place, "shards that do not lie whole elements apart", "aligned addresses");
        }
        shard.offset = apart / bits;
        shard.stride = at->second.stride;
      }
      if (found != shards.size()) {
        fail(place, fmt::format("{} of {} shards bound", found, shards.size()), "all or none");
      }
      RankMap map;
      map.shards.emplace_back(rank, std::move(shards));
      list.push_back({side, tensor, std::move(map), base});
      (side == Side::kTrain ? entry.train_map : entry.gen_map) = -1;  // not to be allocated
    }
  }
  Executor::Buffers buffers = allocate_buffers(plan, backend);
  for (Bound& bound : list) {
    PlanTensor& entry = plan.tensors[static_cast<size_t>(bound.tensor)];
    const bool train = bound.side == Side::kTrain;
    (train ? entry.train_map : entry.gen_map) = static_cast<int32_t>(plan.maps.size());
    (train ? entry.train_buffer : entry.gen_buffer) = static_cast<int32_t>(plan.buffers.size());
    plan.maps.push_back(std::move(bound.map));
    plan.buffers.push_back(entry.name);
    buffers.train.push_back(train ? bound.base : nullptr);
    buffers.gen.push_back(train ? nullptr : bound.base);
  }
  return buffers;
}

void freeze_tensors(Plan& plan, int32_t rank, std::span<const int32_t> tensors) {
  const std::set<int32_t> frozen(tensors.begin(), tensors.end());
  if (frozen.empty()) return;
  std::vector<int32_t> before;  // train maps
  for (const PlanTensor& tensor : plan.tensors) before.push_back(tensor.train_map);
  Program& program = plan.programs[static_cast<size_t>(rank)];
  std::vector<Piece> pieces;
  std::vector<Message> messages;
  const auto keep = [&](int32_t first, int32_t last) {
    for (int32_t m = first; m < last; ++m) {
      Message message = program.messages[static_cast<size_t>(m)];
      const auto begin = static_cast<int32_t>(pieces.size());
      for (int32_t p = message.first_piece; p < message.last_piece; ++p) {
        const Piece& piece = program.pieces[static_cast<size_t>(p)];
        if (!frozen.contains(piece.tensor)) pieces.push_back(piece);
      }
      message.first_piece = begin;
      message.last_piece = static_cast<int32_t>(pieces.size());
      if (message.last_piece > message.first_piece) messages.push_back(message);
    }
    return static_cast<int32_t>(messages.size());
  };
  for (Step& step : program.steps) {
    const auto first = static_cast<int32_t>(messages.size());
    const int32_t recvs = keep(step.first_send, step.first_recv);
    const int32_t last = keep(step.first_recv, step.last_message);
    step.first_send = first;
    step.first_recv = recvs;
    step.last_message = last;
  }
  program.pieces = std::move(pieces);
  program.messages = std::move(messages);
  for (const int32_t tensor : tensors) {
    PlanTensor& entry = plan.tensors[static_cast<size_t>(tensor)];
    entry.train_map = entry.gen_map = -1;
  }
  // A weight of which others are made is still read.
  for (size_t t = 0; t < plan.tensors.size(); ++t) {
    const int32_t source = plan.tensors[t].source;
    if (source < 0 || frozen.contains(static_cast<int32_t>(t)) || !frozen.contains(source))
      continue;
    plan.tensors[static_cast<size_t>(source)].train_map = before[static_cast<size_t>(source)];
  }
}

}  // namespace refit
