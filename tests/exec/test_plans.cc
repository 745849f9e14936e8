#include "tests/exec/test_plans.h"

#include <map>
#include <tuple>

#include "base/error.h"

namespace refit::testing {

PlanMaker::PlanMaker(int32_t ranks, int32_t channels) {
  plan_.strategy = "test";
  plan_.staging_bytes = int64_t{1} << 40;
  plan_.channels.resize(static_cast<size_t>(channels));
  plan_.programs.resize(static_cast<size_t>(ranks));
  for (int32_t rank = 0; rank < ranks; ++rank) {
    PlanRank place;
    place.node = place.nvlink_domain = "n" + std::to_string(rank / 8);
    place.gpu = rank;
    place.device = rank % 8;
    plan_.ranks.push_back(place);
  }
}

int32_t PlanMaker::add_tensor(const std::string& name, const Dims& shape, Dtype dtype,
                              RankMap train, RankMap gen) {
  PlanTensor tensor;
  tensor.name = name;
  tensor.shape = shape;
  tensor.train_dtype = tensor.gen_dtype = dtype;
  tensor.train_map = static_cast<int32_t>(plan_.maps.size());
  tensor.gen_map = tensor.train_map + 1;
  tensor.train_buffer = tensor.gen_buffer = static_cast<int32_t>(plan_.buffers.size());
  for (const auto& [rank, shards] : train.shards)
    plan_.ranks[static_cast<size_t>(rank)].train = true;
  for (const auto& [rank, shards] : gen.shards) plan_.ranks[static_cast<size_t>(rank)].gen = true;
  plan_.maps.push_back(std::move(train));
  plan_.maps.push_back(std::move(gen));
  plan_.buffers.push_back(name);
  plan_.tensors.push_back(tensor);
  return static_cast<int32_t>(plan_.tensors.size()) - 1;
}

int32_t PlanMaker::add_slot(int32_t rank, int32_t tensor, const Box& box, int64_t offset,
                            int64_t bytes) {
  Program& program = plan_.programs[static_cast<size_t>(rank)];
  program.slots.push_back({tensor, static_cast<int32_t>(program.boxes.size()), offset, bytes,
                           plan_.tensors[static_cast<size_t>(tensor)].train_dtype});
  program.boxes.push_back(box);
  return static_cast<int32_t>(program.slots.size()) - 1;
}

void PlanMaker::add_transfer(int32_t from, int32_t to, int32_t channel, int32_t step,
                             std::vector<Move> moves) {
  transfers_.push_back({from, to, channel, step, std::move(moves)});
}

void PlanMaker::add_wait(int32_t rank, int32_t channel, int32_t step, Wait wait) {
  waits_.push_back({rank, channel, step, wait});
}

void PlanMaker::add_direct_transfers() {
  const int32_t world = static_cast<int32_t>(plan_.ranks.size());
  const int32_t channels = static_cast<int32_t>(plan_.channels.size());
  std::map<std::pair<int32_t, int32_t>, std::vector<Move>> moves;  // by (places further on, from)
  for (int32_t t = 0; t < std::ssize(plan_.tensors); ++t) {
    const PlanTensor& tensor = plan_.tensors[static_cast<size_t>(t)];
    std::map<Box, std::vector<int32_t>> holders;
    for (const auto& [rank, shards] : plan_.maps[static_cast<size_t>(tensor.train_map)].shards) {
      for (const Shard& shard : shards) holders[shard.box].push_back(rank);
    }
    for (const auto& [to, shards] : plan_.maps[static_cast<size_t>(tensor.gen_map)].shards) {
      for (const Shard& shard : shards) {
        for (const auto& [box, ranks] : holders) {
          const Box common = intersect(box, shard.box);
          if (common.empty()) continue;
          int32_t from = ranks[static_cast<size_t>(to) % ranks.size()];
          for (const int32_t rank : ranks) from = rank == to ? to : from;
          moves[{(to - from + world) % world, from}].push_back({t, common});
        }
      }
    }
  }
  for (const auto& [key, list] : moves) {
    const auto [places, from] = key;
    const int32_t turn = places / kMaxPeersPerStep;
    add_transfer(from, (from + places) % world, turn % channels, turn / channels, list);
  }
}

Piece PlanMaker::make_piece(Program& program, int32_t rank, const Move& move, bool source) const {
  const PlanTensor& tensor = plan_.tensors[static_cast<size_t>(move.tensor)];
  Piece piece;
  piece.tensor = move.tensor;
  piece.box = static_cast<int32_t>(program.boxes.size());
  program.boxes.push_back(move.box);
  piece.place = source ? move.src : move.dst;
  piece.wire = tensor.train_dtype;
  if (piece.place == Place::kStaging) {
    piece.area = source ? move.src_slot : move.dst_slot;
    return piece;
  }
  const int32_t map = piece.place == Place::kTrain ? tensor.train_map : tensor.gen_map;
  const std::vector<Shard>* shards = plan_.maps[static_cast<size_t>(map)].find(rank);
  REFIT_CHECK(shards != nullptr);
  while (!contains((*shards)[static_cast<size_t>(++piece.area)].box, move.box)) {
    REFIT_CHECK(piece.area + 1 < std::ssize(*shards));
  }
  return piece;
}

Plan PlanMaker::finish() const {
  struct Ends {
    std::map<int32_t, const Transfer*> sends, recvs;  // by peer
  };
  Plan plan = plan_;
  for (int32_t rank = 0; rank < std::ssize(plan.programs); ++rank) {
    Program& program = plan.programs[static_cast<size_t>(rank)];
    std::map<std::pair<int32_t, int32_t>, Ends> steps;  // by (channel, id)
    for (const Transfer& transfer : transfers_) {
      if (transfer.from == rank) {
        steps[{transfer.channel, transfer.step}].sends[transfer.to] = &transfer;
      }
      if (transfer.to == rank) {
        steps[{transfer.channel, transfer.step}].recvs[transfer.from] = &transfer;
      }
    }
    const auto add_message = [&](int32_t peer, const Transfer& transfer, bool source) {
      Message message;
      message.peer = peer;
      message.first_piece = static_cast<int32_t>(program.pieces.size());
      for (const Move& move : transfer.moves) {
        program.pieces.push_back(make_piece(program, rank, move, source));
      }
      message.last_piece = static_cast<int32_t>(program.pieces.size());
      program.messages.push_back(message);
    };
    for (const auto& [key, ends] : steps) {
      Step step;
      std::tie(step.channel, step.id) = key;
      step.first_send = static_cast<int32_t>(program.messages.size());
      for (const auto& [peer, transfer] : ends.sends) add_message(peer, *transfer, true);
      step.first_recv = static_cast<int32_t>(program.messages.size());
      for (const auto& [peer, transfer] : ends.recvs) add_message(peer, *transfer, false);
      step.last_message = static_cast<int32_t>(program.messages.size());
      step.first_wait = static_cast<int32_t>(program.waits.size());
      for (const RankWait& wait : waits_) {
        if (wait.rank == rank && wait.channel == step.channel && wait.step == step.id) {
          program.waits.push_back(wait.wait);
        }
      }
      step.last_wait = static_cast<int32_t>(program.waits.size());
      program.steps.push_back(step);
    }
  }
  return plan;
}

Shard dense_shard(const Box& box, int64_t offset) {
  return {box, offset, dense_strides(box.extents())};
}

RankMap split(const Dims& shape, int dim, int32_t first, int32_t ranks) {
  RankMap map;
  const int64_t block = shape[dim] / ranks;
  for (int32_t i = 0; i < ranks; ++i) {
    Box box = whole(shape);
    box.lo[dim] = i * block;
    box.hi[dim] = (i + 1) * block;
    map.shards.push_back({first + i, {dense_shard(box)}});
  }
  return map;
}

RankMap replicate(const Dims& shape, int32_t first, int32_t ranks) {
  RankMap map;
  for (int32_t i = 0; i < ranks; ++i)
    map.shards.push_back({first + i, {dense_shard(whole(shape))}});
  return map;
}

}  // namespace refit::testing
