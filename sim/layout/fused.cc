#include "sim/layout/fused.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <span>
#include <string_view>

#include "base/error.h"

namespace refit {
namespace {

struct Fusion {
  std::string_view buffer;  // what follows "model.layers.N."
  std::vector<std::string_view> parts;
  bool by_groups = false;
};

// Megatron-Core names, as in a checkpoint: layers are numbered through the whole model, and the
// weights of a rank's experts ("weight0", "weight1", ...) lie one after the other.
const std::vector<Fusion> kMegatronFusions = {
    {"self_attention.linear_qkv.weight",
     {"self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight"},
     true},
    {"self_attention.linear_qkv.bias",
     {"self_attn.q_proj.bias", "self_attn.k_proj.bias", "self_attn.v_proj.bias"},
     true},
    {"self_attention.linear_proj.weight", {"self_attn.o_proj.weight"}},
    {"mlp.linear_fc1.weight", {"mlp.gate_proj.weight", "mlp.up_proj.weight"}},
    {"mlp.linear_fc2.weight", {"mlp.down_proj.weight"}},
    {"mlp.experts.linear_fc1.weight",
     {"mlp.experts.gate_proj.weight", "mlp.experts.up_proj.weight"}},
    {"mlp.experts.linear_fc2.weight", {"mlp.experts.down_proj.weight"}},
    {"mlp.experts.linear_fc1.weight",
     {"block_sparse_moe.experts.w1.weight", "block_sparse_moe.experts.w3.weight"}},
    {"mlp.experts.linear_fc2.weight", {"block_sparse_moe.experts.w2.weight"}},
    {"mlp.shared_experts.linear_fc1.weight",
     {"mlp.shared_experts.gate_proj.weight", "mlp.shared_experts.up_proj.weight"}},
    {"mlp.shared_experts.linear_fc2.weight", {"mlp.shared_experts.down_proj.weight"}},
    {"mlp.shared_experts.linear_fc1.weight",
     {"mlp.shared_expert.gate_proj.weight", "mlp.shared_expert.up_proj.weight"}},
    {"mlp.shared_experts.linear_fc2.weight", {"mlp.shared_expert.down_proj.weight"}},
};

// vLLM and SGLang name all these alike; only the fused low-rank projection of MLA differs.
std::vector<Fusion> engine_fusions(std::string_view low_rank) {
  return {
      {"self_attn.qkv_proj.weight",
       {"self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight"}},
      {"self_attn.qkv_proj.bias",
       {"self_attn.q_proj.bias", "self_attn.k_proj.bias", "self_attn.v_proj.bias"}},
      {low_rank, {"self_attn.q_a_proj.weight", "self_attn.kv_a_proj_with_mqa.weight"}},
      {"mlp.gate_up_proj.weight", {"mlp.gate_proj.weight", "mlp.up_proj.weight"}},
      {"mlp.experts.w13_weight", {"mlp.experts.gate_proj.weight", "mlp.experts.up_proj.weight"}},
      {"mlp.experts.w2_weight", {"mlp.experts.down_proj.weight"}},
      {"block_sparse_moe.experts.w13_weight",
       {"block_sparse_moe.experts.w1.weight", "block_sparse_moe.experts.w3.weight"}},
      {"block_sparse_moe.experts.w2_weight", {"block_sparse_moe.experts.w2.weight"}},
      {"mlp.shared_experts.gate_up_proj.weight",
       {"mlp.shared_experts.gate_proj.weight", "mlp.shared_experts.up_proj.weight"}},
      {"mlp.shared_expert.gate_up_proj.weight",
       {"mlp.shared_expert.gate_proj.weight", "mlp.shared_expert.up_proj.weight"}},
  };
}

std::vector<Fusion> fusions_of(Framework framework) {
  switch (framework) {
    case Framework::kMegatron:
      return kMegatronFusions;
    case Framework::kVllm:
      return engine_fusions("self_attn.fused_qkv_a_proj.weight");
    case Framework::kSglang:
      return engine_fusions("self_attn.fused_qkv_a_proj_with_mqa.weight");
  }
  REFIT_CHECK(false);
  return {};
}

/// "model.layers.3." -> "decoder.layers.3.".
std::string framework_prefix(Framework framework, const std::string& prefix) {
  constexpr std::string_view kModel = "model.";
  if (framework != Framework::kMegatron || !prefix.starts_with(kModel)) return prefix;
  return "decoder." + prefix.substr(kModel.size());
}

/// Extent of a rank's dense row-major buffer along a dimension.
int64_t local_extent(const std::vector<Shard>& shards, int dim) {
  const Dims& stride = shards.front().stride;
  if (dim > 0) return stride[dim - 1] / stride[dim];
  int64_t elements = 0;
  for (const Shard& shard : shards) elements += shard.box.volume();
  return elements / stride[0];
}

/// The maps of parts in one buffer, in which they follow each other along `dim`, rank by rank.
std::vector<RankMap> join_maps(std::vector<RankMap> maps, int dim) {
  for (size_t r = 0; r < maps.front().shards.size(); ++r) {
    int64_t total = 0;
    for (RankMap& map : maps) total += local_extent(map.shards[r].second, dim);
    int64_t before = 0;
    for (RankMap& map : maps) {
      std::vector<Shard>& shards = map.shards[r].second;
      const int64_t extent = local_extent(shards, dim);
      for (Shard& shard : shards) {
        const int64_t block = extent * shard.stride[dim];  // elements of one slice of the part
        const int64_t slice = shard.offset / block;
        shard.offset += slice * (total - extent) * shard.stride[dim] + before * shard.stride[dim];
        for (int d = 0; d < dim; ++d) shard.stride[d] = shard.stride[d] / extent * total;
      }
      before += extent;
    }
  }
  return maps;
}

/// Do the maps have the same ranks?
bool same_ranks(std::span<const RankMap> maps) {
  return std::all_of(maps.begin(), maps.end(), [&](const RankMap& map) {
    return std::equal(map.shards.begin(), map.shards.end(), maps[0].shards.begin(),
                      maps[0].shards.end(),
                      [](const auto& a, const auto& b) { return a.first == b.first; });
  });
}

/// Rows [lo, hi) of a part.
struct Rows {
  size_t part;
  int64_t lo, hi;
};

struct Heads {
  int32_t groups = 0;  // KV heads
  int64_t dim = 0;     // rows of a head; queries with a gate behind each have two such
};

/// The rows of linear_qkv in order: by group its queries, the gates of all of them, key and value.
std::vector<Rows> order_by_groups(std::span<const Tensor* const> parts, const Heads& heads) {
  std::vector<Rows> order;
  const int64_t queries = parts[0]->shape[0] / heads.groups;  // rows of one group
  const bool gated =
      !parts[0]->blocks.empty() && parts[0]->shape[0] == 2 * heads.dim * parts[0]->blocks[0].heads;
  for (int64_t group = 0; group < heads.groups; ++group) {
    const int64_t begin = group * queries, end = begin + queries;
    if (!gated) order.push_back({0, begin, end});
    for (const int64_t half : {0, 1}) {
      for (int64_t head = begin; gated && head < end; head += 2 * heads.dim) {
        const int64_t lo = head + half * heads.dim;
        order.push_back({0, lo, lo + heads.dim});
      }
    }
    for (const size_t part : {size_t{1}, size_t{2}})
      order.push_back({part, group * heads.dim, (group + 1) * heads.dim});
  }
  return order;
}

/// Queries, keys and values cut as one matrix whose rows stand by group. Without `fused` each in a
/// buffer of its own.
std::vector<RankMap> cut_by_groups(std::span<const Tensor* const> parts, int32_t groups,
                                   const Mesh& mesh, bool fused, const std::string& place) {
  const auto axis =
      static_cast<size_t>(std::find(mesh.axis.begin(), mesh.axis.end(), "tp") - mesh.axis.begin());
  REFIT_CHECK(axis < mesh.axis.size());
  const int64_t tp = mesh.size[axis];
  int64_t rows = 0, stride = 1;
  for (const Tensor* part : parts) rows += part->shape[0];
  for (size_t a = axis + 1; a < mesh.size.size(); ++a) stride *= mesh.size[a];
  if (rows % tp != 0) {
    fail(place, fmt::format("{} rows of queries, keys and values over tp={}", rows, tp),
         "a divisor of them");
  }
  const std::vector<Rows> order = order_by_groups(parts, {groups, parts[1]->shape[0] / groups});
  std::vector<RankMap> maps(parts.size());
  for (size_t position = 0; position < mesh.ranks.size(); ++position) {
    const int64_t index = static_cast<int64_t>(position) / stride % tp;
    const int64_t first = index * (rows / tp), last = first + rows / tp;
    std::vector<std::vector<Shard>> shards(parts.size());
    std::vector<int64_t> filled(parts.size(), 0);  // rows of each part so far
    int64_t at = 0;                                // row of the matrix
    for (const Rows& run : order) {
      const int64_t lo = std::max(first, at), hi = std::min(last, at + run.hi - run.lo);
      if (lo < hi) {
        Box box = whole(parts[run.part]->shape);
        box.lo[0] = run.lo + lo - at;
        box.hi[0] = run.lo + hi - at;
        const Dims row = dense_strides(box.extents());
        const int64_t offset = (fused ? lo - first : filled[run.part]) * row[0];
        std::vector<Shard>& mine = shards[run.part];
        if (!mine.empty() && mine.back().box.hi[0] == box.lo[0] &&
            shard_end(mine.back()) == offset) {
          mine.back().box.hi[0] = box.hi[0];
        } else {
          mine.push_back({box, offset, row});
        }
        filled[run.part] += hi - lo;
      }
      at += run.hi - run.lo;
    }
    for (size_t p = 0; p < parts.size(); ++p) {
      if (!shards[p].empty()) maps[p].shards.emplace_back(mesh.ranks[position], shards[p]);
    }
  }
  for (RankMap& map : maps) {
    std::sort(map.shards.begin(), map.shards.end(),
              [](const auto& a, const auto& b) { return a.first < b.first; });
  }
  return maps;
}

/// Fuses the tensors of one layout, rule by rule and layer by layer.
class Fuser {
 public:
  Fuser(const Model& model, const Grid& grid, const std::string& place, Layout& layout)
      : model_(model), grid_(grid), place_(place), layout_(layout) {
    for (size_t t = 0; t < model.tensors.size(); ++t) index_.emplace(model.tensors[t].name, t);
  }

  void run() {
    if (grid_.fused) {
      for (const Tensor& tensor : model_.tensors) layout_.tensor_buffer.push_back(tensor.name);
    }
    for (const Fusion& fusion : fusions_of(grid_.framework)) {
      if (!grid_.fused && !fusion.by_groups) continue;
      for (const Tensor& tensor : model_.tensors) {
        if (!tensor.name.ends_with(fusion.parts[0])) continue;
        const size_t length = tensor.name.size() - fusion.parts[0].size();
        if (length == 0 || tensor.name[length - 1] == '.')
          fuse(fusion, tensor.name.substr(0, length));
      }
    }
    drop_unused_maps();
  }

 private:
  void fuse(const Fusion& fusion, const std::string& prefix) {
    std::vector<size_t> tensors;
    std::vector<const Tensor*> parts;
    for (const std::string_view part : fusion.parts) {
      const auto found = index_.find(prefix + std::string(part));
      if (found == index_.end()) return;  // not fused in this family
      tensors.push_back(found->second);
      parts.push_back(&model_.tensors[found->second]);
      if (parts.back()->dtype != parts.front()->dtype && grid_.fused) {
        fail(fmt::format("{}, tensor {}", place_, parts.back()->name),
             fmt::format("{} in the buffer of {}", dtype_name(parts.back()->dtype),
                         parts.front()->name),
             "one dtype, as they are fused, or fused=off");
      }
    }
    if (fusion.by_groups) {
      fuse_by_groups(tensors, parts);
    } else if (parts.size() > 1) {
      fuse_by_rows(tensors, *parts.front());
    }
    if (!grid_.fused) return;
    for (const size_t tensor : tensors) {
      layout_.tensor_buffer[tensor] =
          framework_prefix(grid_.framework, prefix) + std::string(fusion.buffer);
    }
  }

  void fuse_by_rows(const std::vector<size_t>& tensors, const Tensor& first) {
    std::vector<int32_t> ids;
    for (const size_t tensor : tensors) ids.push_back(layout_.tensor_map[tensor]);
    const auto [it, is_new] = by_rows_.try_emplace(ids);
    if (is_new) {
      std::vector<RankMap> maps;
      for (const int32_t id : ids) maps.push_back(layout_.maps[static_cast<size_t>(id)]);
      REFIT_CHECK(same_ranks(maps));
      const int32_t dim = std::max(0, tp_dimension(first.role));
      it->second = add(join_maps(std::move(maps), dim));
    }
    assign(tensors, it->second);
  }

  void fuse_by_groups(const std::vector<size_t>& tensors, const std::vector<const Tensor*>& parts) {
    const Tensor& first = *parts.front();
    const std::string place = fmt::format("{}, tensor {}", place_, first.name);
    const Mesh mesh = tensor_mesh(model_, first, grid_, place);
    const int32_t groups = model_.kv_heads;
    const auto tp = std::find(mesh.axis.begin(), mesh.axis.end(), "tp") - mesh.axis.begin();
    const int32_t size = mesh.size[static_cast<size_t>(tp)];
    if (!grid_.fused && (size == 1 || size <= groups)) return;  // cut between groups, as elsewhere
    std::vector<int64_t> key(mesh.ranks.begin(), mesh.ranks.end());
    key.push_back(size);
    for (const Tensor* part : parts) {
      key.push_back(part->shape[0]);
      if (groups > 0 && part->shape[0] % groups == 0) continue;
      fail(place, fmt::format("{} rows in {} KV heads", part->shape[0], groups), "a multiple");
    }
    key.push_back(first.shape.count > 1 ? first.shape[1] : 0);
    const auto [it, is_new] = by_groups_.try_emplace(key);
    if (is_new) it->second = add(cut_by_groups(parts, groups, mesh, grid_.fused, place));
    assign(tensors, it->second);
  }

  std::vector<int32_t> add(std::vector<RankMap> maps) {
    std::vector<int32_t> ids;
    for (RankMap& map : maps) {
      ids.push_back(static_cast<int32_t>(layout_.maps.size()));
      layout_.maps.push_back(std::move(map));
    }
    return ids;
  }

  void assign(const std::vector<size_t>& tensors, const std::vector<int32_t>& maps) {
    for (size_t p = 0; p < tensors.size(); ++p) layout_.tensor_map[tensors[p]] = maps[p];
  }

  void drop_unused_maps() {
    std::vector<int32_t> number(layout_.maps.size(), -1);
    std::vector<RankMap> used;
    for (int32_t& map : layout_.tensor_map) {
      int32_t& renamed = number[static_cast<size_t>(map)];
      if (renamed < 0) {
        renamed = static_cast<int32_t>(used.size());
        used.push_back(std::move(layout_.maps[static_cast<size_t>(map)]));
      }
      map = renamed;
    }
    layout_.maps = std::move(used);
  }

  const Model& model_;
  const Grid& grid_;
  const std::string& place_;
  Layout& layout_;
  std::map<std::string, size_t> index_;
  std::map<std::vector<int32_t>, std::vector<int32_t>> by_rows_;    // maps of the parts
  std::map<std::vector<int64_t>, std::vector<int32_t>> by_groups_;  // mesh and shapes
};

}  // namespace

void apply_fusions(const Model& model, const Grid& grid, const std::string& place, Layout& layout) {
  Fuser(model, grid, place, layout).run();
}

}  // namespace refit
