#include "sim/layout/quantise.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <span>
#include <tuple>
#include <unordered_map>

#include "base/error.h"
#include "sim/layout/precision.h"

namespace refit {
namespace {

constexpr std::array<Output, 2> kCompanions = {Output::kScale, Output::kGlobalScale};

/// The same map with other boxes, one dense box behind the other in a rank's buffer. Parts of a
/// weight with one and the same scale have it once, but a box that a rank has twice (redundant
/// experts) is two of each.
template <typename Change>
RankMap change_boxes(const RankMap& map, Change change) {
  RankMap changed;
  for (const auto& [rank, shards] : map.shards) {
    std::vector<std::pair<Box, Box>> made;  // box, of which
    std::vector<Shard> list;
    int64_t offset = 0;
    for (const Shard& shard : shards) {
      if (shard.box.empty()) continue;
      const std::optional<Box> box = change(shard.box);
      if (!box) continue;
      const bool known = std::any_of(made.begin(), made.end(), [&](const auto& other) {
        return other.first == *box && other.second != shard.box;
      });
      if (known) continue;
      made.emplace_back(*box, shard.box);
      list.push_back({*box, offset, dense_strides(box->extents())});
      offset += box->volume();
    }
    if (!list.empty()) changed.shards.emplace_back(rank, std::move(list));
  }
  return changed;
}

/// The largest part of a box that is made of whole blocks (matrices), if there is one.
std::optional<Box> shrink(Format format, const Dims& shape, const Box& box) {
  const bool matrices = has_output(format, Output::kGlobalScale);
  const Block2 block = scale_block(format);
  Box inside = box;
  for (int dim = 0; dim < box.dims(); ++dim) {
    const bool row = dim == box.dims() - 2, column = dim == box.dims() - 1;
    int64_t unit = row ? block.rows : column ? block.columns : 1;
    if (matrices && (row || column)) unit = shape[dim];
    inside.lo[dim] = (box.lo[dim] + unit - 1) / unit * unit;
    inside.hi[dim] = box.hi[dim] == shape[dim] ? shape[dim] : box.hi[dim] / unit * unit;
    if (inside.hi[dim] <= inside.lo[dim]) return std::nullopt;
  }
  return inside;
}

/// Is every element of the box in one of the others?
bool is_covered(const Box& box, std::span<const Box> by) {
  if (box.empty()) return true;
  for (size_t i = 0; i < by.size(); ++i) {
    const Box common = intersect(box, by[i]);
    if (common.empty()) continue;
    // What sticks out, side by side.
    Box rest = box;
    for (int dim = 0; dim < box.dims(); ++dim) {
      Box below = rest, above = rest;
      below.hi[dim] = common.lo[dim];
      above.lo[dim] = common.hi[dim];
      for (const Box& part : {below, above}) {
        if (part.lo[dim] < part.hi[dim] && !is_covered(part, by.subspan(i + 1))) return false;
      }
      rest.lo[dim] = common.lo[dim];
      rest.hi[dim] = common.hi[dim];
    }
    return true;
  }
  return false;
}

std::vector<Box> distinct_boxes(const RankMap& map) {
  std::vector<Box> boxes;
  for (const auto& [rank, shards] : map.shards) {
    for (const Shard& shard : shards) {
      if (!shard.box.empty()) boxes.push_back(shard.box);
    }
  }
  std::sort(boxes.begin(), boxes.end());
  boxes.erase(std::unique(boxes.begin(), boxes.end()), boxes.end());
  return boxes;
}

std::string block_name(Format format) {
  if (has_output(format, Output::kGlobalScale)) {
    return fmt::format("matrix of {}", format_name(format));
  }
  const Block2 block = scale_block(format);
  return fmt::format("{} x {} block of {}", block.rows, block.columns, format_name(format));
}

/// Maps made of others, each once.
class MapCache {
 public:
  MapCache(Layout& layout) : layout_(layout) {}

  template <typename Make>
  int32_t get(int32_t map, Format format, int kind, const Dims& shape, Make make) {
    const auto [it, is_new] = made_.try_emplace(std::tuple(map, format, kind, shape), 0);
    if (is_new) {
      RankMap made = make(layout_.maps[static_cast<size_t>(map)]);
      it->second = static_cast<int32_t>(layout_.maps.size());
      layout_.maps.push_back(std::move(made));
    }
    return it->second;
  }

 private:
  Layout& layout_;
  std::map<std::tuple<int32_t, Format, int, Dims>, int32_t> made_;
};

class CastMaker {
 public:
  CastMaker(Model& model, Layout& train, Layout& gen)
      : model_(model), train_(train), gen_(gen), train_maps_(train), gen_maps_(gen) {}

  std::vector<Cast> make() {
    if (train_.quantisation.format != Format::kNone) {
      fail("layout " + quote_spec(train_), "quant on the train side",
           "quant on the gen side; trained fp8 weights are tensors of the model");
    }
    const Model before = std::move(model_);
    model_ = before;
    model_.tensors.clear();
    const std::vector<int32_t> train_map = std::move(train_.tensor_map);
    const std::vector<int32_t> gen_map = std::move(gen_.tensor_map);
    const std::vector<std::string> train_buffer = std::move(train_.tensor_buffer);
    const std::vector<std::string> gen_buffer = std::move(gen_.tensor_buffer);
    train_.tensor_buffer.clear();
    gen_.tensor_buffer.clear();
    for (size_t t = 0; t < before.tensors.size(); ++t) {
      add_tensor(before.tensors[t], t, train_map[t], gen_map[t]);
      name_buffers(train_buffer, t, train_);
      name_buffers(gen_buffer, t, gen_);
    }
    check_buffers(gen_);
    return std::move(casts_);
  }

 private:
  static std::string quote_spec(const Layout& layout) { return "'" + layout.spec + "'"; }

  static Precision precision_of(const Layout& layout, size_t tensor, Dtype fallback) {
    return layout.precision.empty() ? Precision{fallback, CastAt::kNowhere}
                                    : layout.precision[tensor];
  }

  /// Of what tensor `index` of the model has become: the tensor stays in its buffer, companions
  /// have buffers of their own.
  void name_buffers(const std::vector<std::string>& before, size_t index, Layout& layout) const {
    if (before.empty()) return;
    for (size_t t = layout.tensor_buffer.size(); t < model_.tensors.size(); ++t) {
      layout.tensor_buffer.push_back(casts_[t].source < 0 ? before[index] : model_.tensors[t].name);
    }
  }

  /// Refuses fused tensors of which only some are quantised.
  void check_buffers(const Layout& layout) const {
    std::map<std::string, size_t> first;
    for (size_t t = 0; t < layout.tensor_buffer.size(); ++t) {
      const size_t other = first.try_emplace(layout.tensor_buffer[t], t).first->second;
      if (casts_[t].gen == casts_[other].gen) continue;
      fail(fmt::format("layout {}, tensor {}", quote_spec(layout), model_.tensors[t].name),
           fmt::format("{} in the buffer of {}, which is {}", dtype_name(casts_[t].gen),
                       model_.tensors[other].name, dtype_name(casts_[other].gen)),
           "one dtype, as they are fused, or fused=off");
    }
  }

  void push(Tensor tensor, Dtype wire, int32_t train_map, int32_t gen_map, Cast cast) {
    tensor.dtype = wire;
    model_.tensors.push_back(std::move(tensor));
    train_.tensor_map.push_back(train_map);
    gen_.tensor_map.push_back(gen_map);
    casts_.push_back(cast);
  }

  void add_tensor(const Tensor& tensor, size_t index, int32_t train_map, int32_t gen_map) {
    const Precision train = precision_of(train_, index, tensor.dtype);
    const Precision gen = precision_of(gen_, index, tensor.dtype);
    Cast cast{.train = train.dtype, .gen = gen.dtype, .supply = train_map, .wanted = gen_map};
    Tensor trained = tensor;
    trained.dtype = train.dtype;
    if (is_selected(trained, gen_.quantisation)) {
      return add_quantised(trained, train_map, gen_map);
    }
    if (train.dtype == gen.dtype) {
      return push(tensor, train.dtype, train_map, gen_map, cast);
    }
    const CastAt where = gen.cast != CastAt::kNowhere ? gen.cast : train.cast;
    const std::string place = "tensor " + tensor.name;
    if (where == CastAt::kNowhere) {
      fail(place,
           fmt::format("train dtype {} and gen dtype {}, no cast declared", dtype_name(train.dtype),
                       dtype_name(gen.dtype)),
           "equal dtypes, or cast: anywhere");
    }
    if (!is_convertible(train.dtype, gen.dtype)) {
      fail(
          place,
          fmt::format("a cast from dtype {} to {}", dtype_name(train.dtype), dtype_name(gen.dtype)),
          "casts between fp32, bf16 and fp16; quant=FORMAT for quantised weights");
    }
    const bool narrows = dtype_bits(gen.dtype) < dtype_bits(train.dtype);
    const bool at_source = where == CastAt::kAnywhere ? narrows : where == CastAt::kOnSend;
    push(tensor, at_source ? gen.dtype : train.dtype, train_map, gen_map, cast);
  }

  void add_quantised(const Tensor& tensor, int32_t train_map, int32_t gen_map) {
    const Format format = gen_.quantisation.format;
    const Dims& shape = tensor.shape;
    const Block2 block = scale_block(format);
    if (block.rows == 1 && shape[shape.count - 1] % block.columns != 0) {
      fail("tensor " + tensor.name, fmt::format("{} columns", shape[shape.count - 1]),
           fmt::format("a multiple of {}, the block of {}", block.columns, format_name(format)));
    }
    const auto shrunk = [&](const RankMap& map) {
      return change_boxes(map, [&](const Box& box) { return shrink(format, shape, box); });
    };
    Cast cast{.train = tensor.dtype,
              .gen = output_dtype(format, Output::kData),
              .format = format,
              .supply = train_maps_.get(train_map, format, 0, shape, shrunk),
              .wanted = gen_map};
    const auto [it, is_new] =
        assembled_.try_emplace(std::tuple(train_map, gen_map, format, shape), false);
    if (is_new) it->second = must_assemble(tensor, format, cast.supply, gen_map);
    cast.assembled = it->second;
    const auto weight = static_cast<int32_t>(model_.tensors.size());
    push(tensor, cast.gen, train_map, gen_map, cast);
    for (const Output output : kCompanions) {
      if (has_output(format, output)) add_companion(tensor, weight, output, cast, train_map);
    }
  }

  void add_companion(const Tensor& weight, int32_t index, Output output, const Cast& of_weight,
                     int32_t train_map) {
    const Format format = of_weight.format;
    Tensor tensor = weight;
    tensor.name += companion_suffix(format, output);
    tensor.shape = output_shape(format, output, weight.shape);
    tensor.role = Role::kReplicated;
    tensor.ffn = false;
    for (const Tensor& other : model_.tensors) {
      if (other.name == tensor.name) {
        fail("tensor " + other.name, "the name of a companion",
             "a model that is not quantised yet");
      }
    }
    const auto outwards = [&](const RankMap& map) {
      return change_boxes(
          map, [&](const Box& box) { return std::optional(output_box(format, output, box)); });
    };
    const auto everything = [&](const RankMap& map) {
      return change_boxes(map, [&](const Box&) { return std::optional(whole(tensor.shape)); });
    };
    const int kind = 1 + static_cast<int>(output);
    Cast cast = of_weight;
    cast.train = cast.gen = output_dtype(format, output);
    cast.output = output;
    cast.source = index;
    cast.supply = train_maps_.get(of_weight.supply, format, kind, weight.shape, outwards);
    cast.wanted = gen_.quantisation.whole_scales
                      ? gen_maps_.get(of_weight.wanted, format, kind + 8, weight.shape, everything)
                      : gen_maps_.get(of_weight.wanted, format, kind, weight.shape, outwards);
    // A block of fewer than four elements may be cheaper to send in the train dtype than with its
    // scale.
    const Block2 block = scale_block(format);
    const int dims = weight.shape.count;
    const int64_t rows = weight.shape[dims - 2] % block.rows;
    const int64_t columns = weight.shape[dims - 1] % block.columns;
    const bool tiny =
        (rows == 0 ? block.rows : rows) * (columns == 0 ? block.columns : columns) < 4;
    const bool unsure = cast.assembled || (tiny && output == Output::kScale);
    const int32_t wanted = unsure ? nobody() : cast.wanted;
    push(tensor, cast.gen, train_maps_.get(train_map, format, kind, weight.shape, outwards), wanted,
         cast);
  }

  int32_t nobody() {
    if (nobody_ < 0) {
      nobody_ = static_cast<int32_t>(gen_.maps.size());
      gen_.maps.emplace_back();
    }
    return nobody_;
  }

  bool must_assemble(const Tensor& tensor, Format format, int32_t supply, int32_t gen_map) const {
    const std::vector<Box> supplied = distinct_boxes(train_.maps[static_cast<size_t>(supply)]);
    const std::vector<Box> wanted = distinct_boxes(gen_.maps[static_cast<size_t>(gen_map)]);
    const auto grown = [&](const Box& box) {
      return source_box(format, Output::kData, tensor.shape, box);
    };
    const auto missing = std::find_if(wanted.begin(), wanted.end(), [&](const Box& box) {
      return !is_covered(grown(box), supplied);
    });
    if (missing == wanted.end()) return false;
    if (has_output(format, Output::kGlobalScale)) return true;
    for (const Box& box : wanted) {
      if (grown(box) == box) continue;
      fail(fmt::format("tensor {}, box {}", tensor.name, print_box(box)),
           fmt::format("cuts inside a {} on both sides", block_name(format)),
           "whole blocks on one of them");
    }
    return true;
  }

  Model& model_;
  Layout &train_, &gen_;
  MapCache train_maps_, gen_maps_;
  std::map<std::tuple<int32_t, int32_t, Format, Dims>, bool> assembled_;
  int32_t nobody_ = -1;
  std::vector<Cast> casts_;
};

/// The format and output that a tensor is of a weight of the model, from its name, dtype and shape.
struct Scale {
  int32_t weight = -1;
  Format format = Format::kNone;
  Output output = Output::kScale;
};

std::vector<Scale> find_scales(const Model& model) {
  std::unordered_map<std::string, int32_t> index;
  for (size_t t = 0; t < model.tensors.size(); ++t) {
    index.emplace(model.tensors[t].name, static_cast<int32_t>(t));
  }
  std::vector<Scale> scales(model.tensors.size());
  for (size_t t = 0; t < model.tensors.size(); ++t) {
    const Tensor& tensor = model.tensors[t];
    for (int f = 1; f < kFormatCount; ++f) {
      const auto format = static_cast<Format>(f);
      for (const Output output : kCompanions) {
        const std::string_view suffix = companion_suffix(format, output);
        if (suffix.empty() || !tensor.name.ends_with(suffix)) continue;
        const auto weight = index.find(tensor.name.substr(0, tensor.name.size() - suffix.size()));
        if (weight == index.end()) continue;
        const Tensor& of = model.tensors[static_cast<size_t>(weight->second)];
        if (of.shape.count < 2 || of.dtype != output_dtype(format, Output::kData) ||
            tensor.shape != output_shape(format, output, of.shape)) {
          continue;
        }
        scales[t] = {weight->second, format, output};
      }
    }
  }
  return scales;
}

}  // namespace

bool is_plain(const Cast& cast) { return cast.format == Format::kNone && cast.train == cast.gen; }

std::vector<Cast> apply_casts(Model& model, Layout& train, Layout& gen) {
  return CastMaker(model, train, gen).make();
}

std::vector<int32_t> weights_of_scales(const Model& model) {
  std::vector<int32_t> weights;
  for (const Scale& scale : find_scales(model)) weights.push_back(scale.weight);
  return weights;
}

void follow_weights(const Model& model, Layout& layout) {
  MapCache maps(layout);
  const std::vector<Scale> scales = find_scales(model);
  for (size_t t = 0; t < scales.size(); ++t) {
    const Scale& scale = scales[t];
    if (scale.weight < 0) continue;
    const Tensor& weight = model.tensors[static_cast<size_t>(scale.weight)];
    const Dims& shape = model.tensors[t].shape;
    const bool everything = layout.quantisation.whole_scales;
    layout.tensor_map[t] = maps.get(
        layout.tensor_map[static_cast<size_t>(scale.weight)], scale.format,
        static_cast<int>(scale.output) + (everything ? 8 : 0), weight.shape,
        [&](const RankMap& map) {
          return change_boxes(map, [&](const Box& box) {
            if (everything) return std::optional(whole(shape));
            if (whole_blocks(scale.format, weight.shape, box) != box) {
              fail(fmt::format("layout '{}', tensor {}, box {}", layout.spec, weight.name,
                               print_box(box)),
                   fmt::format("a cut inside a {} x {} block of its scales",
                               scale_block(scale.format).rows, scale_block(scale.format).columns),
                   "cuts between blocks");
            }
            return std::optional(output_box(scale.format, scale.output, box));
          });
        });
  }
}

}  // namespace refit
