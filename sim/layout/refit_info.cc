// NeMo RL's refit_info (nemo_rl/weight_sync/nccl_reshard_utils.py), in the plain form in which it
// crosses processes: one entry per tensor with mesh and placements of both sides.

#include <fmt/format.h>

#include <numeric>

#include "base/error.h"
#include "sim/layout/layout_file.h"
#include "sim/layout/layout_rules.h"
#include "sim/layout/spec.h"

namespace refit {
namespace {

/// Sizes of the whole job.
struct World {
  int32_t train = 0, gen = 0, pp = 1;

  /// With pp > 1 the ranks in the meshes are those of a stage's own communicator: its training
  /// ranks from 0, then all gen ranks. Here the stages follow each other (Megatron's order has pp
  /// last).
  int32_t stage_ranks() const { return train / pp; }
  int32_t global(Side side, int32_t stage, int32_t rank) const {
    return side == Side::kTrain ? stage * stage_ranks() + rank : train + rank - stage_ranks();
  }
};

void read_mesh(const Value& value, size_t depth, Mesh& mesh) {
  if (value.kind() != Value::Kind::kList) {
    if (depth != mesh.size.size()) fail(value.place(), "a single rank", "lists of equal depth");
    mesh.ranks.push_back(static_cast<int32_t>(value.as_int(0, kMaxRanks - 1)));
    return;
  }
  const auto count = static_cast<int32_t>(value.size());
  if (count == 0) fail(value.place(), "an empty list", "ranks");
  if (depth == mesh.size.size()) {
    // Sizes are those of the first list of every depth; they are fixed once a rank was read.
    if (!mesh.ranks.empty()) fail(value.place(), "a list", "lists of equal depth");
    mesh.axis.push_back(fmt::format("axis {}", depth));
    mesh.size.push_back(count);
  }
  if (mesh.size[depth] != count) {
    fail(value.place(), fmt::format("a list of {}", count),
         fmt::format("{}, as the others have", mesh.size[depth]));
  }
  for (size_t i = 0; i < value.size(); ++i) read_mesh(value[i], depth + 1, mesh);
}

MeshPart read_part(const Value& mesh, const Value& placements, Side side, int32_t stage,
                   const World& world) {
  MeshPart part;
  part.place = placements.place();
  part.split = Split::kChunk;  // torch's rule, as xferdtensor has it
  const Value& ranks = mesh.at("mesh");
  mesh.finish();
  ranks.size();  // a list
  read_mesh(ranks, 0, part.mesh);
  check_ranks(part.mesh.ranks, std::nullopt, ranks.place());
  const int32_t first = side == Side::kTrain ? 0 : world.stage_ranks();
  const int32_t count = side == Side::kTrain ? world.stage_ranks() : world.gen;
  for (int32_t& rank : part.mesh.ranks) {
    if (rank < first || rank >= first + count) {
      fail(ranks.place(), fmt::format("rank {}", rank),
           fmt::format("{} to {}, the {} ranks of its communicator", first, first + count - 1,
                       side == Side::kTrain ? "train" : "gen"));
    }
    rank = world.global(side, stage, rank);
  }
  for (size_t i = 0; i < placements.size(); ++i) {
    Placement placement;
    if (const Value* dim = placements[i].find("dim")) {
      placement.dim = static_cast<int32_t>(dim->as_int(0, kMaxDims - 1));
    }
    placements[i].finish();
    part.placements.push_back(placement);
  }
  if (part.placements.size() != part.mesh.axis.size()) {
    fail(placements.place(), fmt::format("{} placements", part.placements.size()),
         fmt::format("{}, one per dimension of the mesh", part.mesh.axis.size()));
  }
  return part;
}

Dims read_shape(const Value& value) {
  std::vector<int64_t> extents;
  for (size_t i = 0; i < value.size(); ++i) extents.push_back(value[i].as_int(1, int64_t{1} << 40));
  if (extents.size() > static_cast<size_t>(kMaxDims)) {
    fail(value.place(), fmt::format("{} dimensions", extents.size()),
         fmt::format("at most {}", kMaxDims));
  }
  return Dims(extents);
}

LayoutRule read_param(const Value& value, Side side, const World& world) {
  LayoutRule rule;
  rule.place = value.place();
  rule.patterns.push_back(value.at("name").as_text());
  rule.global_shape = read_shape(value.at("global_shape"));
  value.find("dtype");                // the model's business
  value.find("grouped_expert_proj");  // how NeMo RL stacks experts; the name says it all
  int32_t stage = 0;
  if (const Value* pp_stage = value.find("pp_stage")) {
    stage = static_cast<int32_t>(pp_stage->as_int(0, world.pp - 1));
  } else if (world.pp > 1) {
    fail(value.place(), "no key \"pp_stage\"", fmt::format("one, as pp_size is {}", world.pp));
  }
  // Both sides are read, so that an error in either shows whichever is asked for.
  const MeshPart train =
      read_part(value.at("src_mesh_info"), value.at("src_placements"), Side::kTrain, stage, world);
  const MeshPart gen =
      read_part(value.at("dst_mesh_info"), value.at("dst_placements"), Side::kGen, stage, world);
  value.finish();
  rule.parts.push_back(side == Side::kTrain ? train : gen);
  return rule;
}

/// Tensors outside the bulk are gathered on training rank 0 and broadcast from there.
LayoutRule misc_rule(const std::string& name, const Value& value, Side side, const World& world) {
  LayoutRule rule;
  rule.place = value.place();
  rule.patterns.push_back(name);
  rule.global_shape = read_shape(value.at("shape"));
  value.find("dtype");
  value.finish();
  MeshPart part;
  part.place = rule.place;
  part.mesh.axis.push_back("broadcast");
  part.mesh.size.push_back(side == Side::kTrain ? 1 : world.gen);
  part.mesh.ranks.resize(static_cast<size_t>(part.mesh.size[0]));
  std::iota(part.mesh.ranks.begin(), part.mesh.ranks.end(), side == Side::kTrain ? 0 : world.train);
  part.placements.push_back({});
  rule.parts.push_back(std::move(part));
  return rule;
}

}  // namespace

Layout read_refit_info(const Value& root, const Model& model, Side side) {
  World world;
  const auto size = [&](std::string_view key) {
    return static_cast<int32_t>(root.at(key).as_int(1, kMaxRanks));
  };
  world.train = size("train_world_size");
  world.gen = size("gen_world_size");
  if (root.find("pp_size") != nullptr) world.pp = size("pp_size");
  root.find("gen_tp_size");
  root.find("layer_names");
  if (world.train % world.pp != 0) {
    fail(root.at("train_world_size").place(), fmt::format("{} ranks", world.train),
         fmt::format("a multiple of pp_size = {}", world.pp));
  }

  LayoutRules rules;
  rules.place = root.place();
  for (const auto& [layer, params] : root.at("per_layer_params").items()) {
    for (size_t i = 0; i < params->size(); ++i) {
      rules.rules.push_back(read_param((*params)[i], side, world));
    }
  }
  const Value* misc = root.find("misc_meta");
  if (misc != nullptr) {
    for (const auto& [name, value] : misc->items()) {
      rules.rules.push_back(misc_rule(name, *value, side, world));
    }
  }
  root.finish();
  const int32_t first = side == Side::kTrain ? 0 : world.train;
  for (int32_t rank = 0; rank < (side == Side::kTrain ? world.train : world.gen); ++rank) {
    rules.ranks.insert(first + rank);
  }
  Layout layout = place_by_rules(rules, model);
  if (misc != nullptr && side == Side::kTrain) {
    layout.notes.push_back(
        "the tensors of misc_meta are taken from training rank 0, which NeMo RL "
        "gathers them on");
  }
  return layout;
}

}  // namespace refit
