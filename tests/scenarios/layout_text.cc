#include "tests/scenarios/layout_text.h"

#include <fmt/format.h>

#include <set>

#include "base/error.h"
#include "tests/scenarios/elements.h"

namespace refit::scenarios {
namespace {

std::string list(const Numbers& numbers) { return fmt::format("[{}]", fmt::join(numbers, ", ")); }

std::string placement_text(const std::string& placement) {
  if (placement == "R") return "replicate";
  if (placement == "P") return "partial";
  if (placement.starts_with("SS")) {
    const size_t slash = placement.find('/');
    return fmt::format("\"strided_shard({}, {})\"", placement.substr(2, slash - 2),
                       placement.substr(slash + 1));
  }
  return "shard(" + placement.substr(1) + ")";
}

std::string mesh_text(const TensorSide& side, int64_t shift) {
  std::string axes, placements, order;
  for (size_t axis = 0; axis < side.mesh.size(); ++axis) {
    axes += fmt::format("{}a{}", axis == 0 ? "" : ", ", axis);
    placements += (axis == 0 ? "" : ", ") + placement_text(side.placements[axis]);
  }
  for (const int64_t axis : side.order)
    order += fmt::format("{}a{}", order.empty() ? "" : ", ", axis);
  Numbers ranks = side.ranks;
  for (int64_t& rank : ranks) rank += shift;
  return fmt::format("mesh: {{axes: [{}], sizes: {}, ranks: {}}}, placements: [{}], split: {}{}{}",
                     axes, list(side.mesh), list(ranks), placements,
                     side.split == "tensor_split" ? "balanced" : side.split,
                     order.empty() ? "" : ", order: [" + order + "]",
                     side.column_major ? ", storage: column_major" : "");
}

std::string block_text(const Block& block) {
  std::string box;
  for (const Numbers& range : block.box) box += (box.empty() ? "" : ", ") + list(range);
  return fmt::format("{{box: [{}], at: {}}}", box, list(block.at));
}

/// Rows as blocks of the local buffer.
std::vector<Block> blocks_of_rows(const Numbers& shape, int64_t dim,
                                  const std::vector<Numbers>& ranges) {
  std::vector<Block> blocks;
  int64_t at = 0;
  for (const Numbers& range : ranges) {
    if (range[0] == range[1]) continue;
    Block block;
    for (size_t d = 0; d < shape.size(); ++d) {
      const bool cut = static_cast<int64_t>(d) == dim;
      block.box.push_back(cut ? range : Numbers{0, shape[d]});
      block.at.push_back(cut ? at : 0);
    }
    at += range[1] - range[0];
    blocks.push_back(std::move(block));
  }
  return blocks;
}

std::string boxes_text(const Numbers& shape, const TensorSide& side) {
  std::string text;
  const auto locals = local_elements(shape, side);
  for (int64_t i = 0; i < side.replicas; ++i) {
    const auto add = [&](int32_t rank, const std::vector<Block>& blocks) {
      const auto global = static_cast<int32_t>(rank + i * side.stride);
      std::string boxes;
      for (const Block& block : blocks) boxes += (boxes.empty() ? "" : ", ") + block_text(block);
      text += fmt::format("{}{}: {{shape: {}, boxes: [{}]}}", text.empty() ? "" : ", ", global,
                          list(locals.at(global).shape), boxes);
    };
    for (const auto& [rank, ranges] : side.rows) {
      add(rank, blocks_of_rows(shape, side.dim, ranges));
    }
    for (const auto& [rank, blocks] : side.blocks) add(rank, blocks);
  }
  return "boxes: {" + text + "}";
}

std::string side_text(const Numbers& shape, const TensorSide& side) {
  if (side.mesh.empty()) return boxes_text(shape, side);
  if (side.replicas == 1) return mesh_text(side, 0);
  std::string parts;
  for (int64_t i = 0; i < side.replicas; ++i) {
    parts += (i == 0 ? "{" : ", {") + mesh_text(side, i * side.stride) + "}";
  }
  return "parts: [" + parts + "]";
}

std::string repeat_name(const ScenarioTensor& tensor, int64_t i) {
  return tensor.repeat == 1 ? tensor.name : fmt::format("{}.{}", tensor.name, i);
}

}  // namespace

Model make_model(const Scenario& scenario, const std::string& dtype) {
  Model model;
  model.name = scenario.id;
  for (const ScenarioTensor& entry : scenario.tensors) {
    for (int64_t i = 0; i < entry.repeat; ++i) {
      Tensor tensor;
      tensor.name = repeat_name(entry, i);
      tensor.shape = Dims(entry.shape);
      tensor.dtype = parse_dtype(dtype.empty() ? entry.dtype : dtype, scenario.id);
      model.tensors.push_back(tensor);
    }
  }
  return model;
}

std::string layout_text(const Scenario& scenario, bool train, bool declare, int32_t only_rank,
                        bool dtypes) {
  std::string text = "tensors:\n";
  for (const ScenarioTensor& tensor : scenario.tensors) {
    const TensorSide& side = train ? tensor.src : tensor.dst;
    std::string names, declared;
    for (int64_t i = 0; i < tensor.repeat; ++i) {
      names += fmt::format("{}\"{}\"", i == 0 ? "" : ", ", repeat_name(tensor, i));
    }
    for (const auto& [rank, shape] : side.declared_shapes) {
      if (!declare || (only_rank >= 0 && rank != only_rank)) continue;
      declared += fmt::format("{}{}: {}", declared.empty() ? "" : ", ", rank, list(shape));
    }
    std::string precision;
    if (dtypes && !side.dtype.empty()) precision += ", dtype: " + side.dtype;
    if (dtypes && !side.cast.empty()) precision += ", cast: " + side.cast;
    text += fmt::format("  - {{name: [{}], {}{}{}}}\n", names, side_text(tensor.shape, side),
                        declared.empty() ? "" : ", local_shapes: {" + declared + "}", precision);
  }
  return text;
}

Model names_model(const Scenario& scenario) {
  Model model;
  model.name = scenario.id;
  std::set<std::string> seen;
  for (const auto& [rank, names] : scenario.tensors[0].dst.names) {
    for (const std::string& name : names) {
      if (!seen.insert(name).second) continue;
      Tensor tensor;
      tensor.name = name;
      tensor.shape = {4};
      model.tensors.push_back(tensor);
    }
  }
  return model;
}

std::string names_text(const Scenario& scenario, bool train) {
  const TensorSide& side = train ? scenario.tensors[0].src : scenario.tensors[0].dst;
  std::string text = "tensors:\n";
  for (const auto& [rank, names] : side.names) {
    for (const std::string& name : names) {
      text += fmt::format("  - {{name: \"{}\", boxes: {{{}: [[[0, 4]]]}}}}\n", name, rank);
    }
  }
  return text;
}

std::string engines_text(const Scenario& scenario) {
  std::string parts;
  for (const Numbers& ranks : scenario.tensors[0].dst.engines) {
    parts += fmt::format(
        "{}{{mesh: {{axes: [tp], sizes: [{}], ranks: {}}}, placements: [shard(0)], "
        "split: chunk}}",
        parts.empty() ? "" : ", ", ranks.size(), list(ranks));
  }
  return "default: {parts: [" + parts + "]}\n";
}

}  // namespace refit::scenarios
