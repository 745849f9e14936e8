#include "sim/layout/demand.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <map>
#include <optional>
#include <utility>

#include "base/error.h"

namespace refit {
namespace {

/// Sets, of ranks or of boxes, by number; equal sets have equal numbers. Number 0 is the empty set.
class NumberedSets {
 public:
  NumberedSets() { intern({}); }

  int32_t intern(std::vector<int32_t> members) {
    const auto [it, is_new] =
        ids_.try_emplace(std::move(members), static_cast<int32_t>(sets_.size()));
    if (is_new) sets_.push_back(&it->first);
    return it->second;
  }

  int32_t unite(int32_t a, int32_t b) {
    if (a == b || b == 0) return a;
    if (a == 0) return b;
    const auto [it, is_new] = unions_.try_emplace(std::minmax(a, b), 0);
    if (is_new) {
      std::vector<int32_t> both;
      std::set_union((*this)[a].begin(), (*this)[a].end(), (*this)[b].begin(), (*this)[b].end(),
                     std::back_inserter(both));
      it->second = intern(std::move(both));
    }
    return it->second;
  }

  const std::vector<int32_t>& operator[](int32_t set) const {
    return *sets_[static_cast<size_t>(set)];
  }

 private:
  std::map<std::vector<int32_t>, int32_t> ids_;
  std::vector<const std::vector<int32_t>*> sets_;  // keys of ids_, which stay where they are
  std::map<std::pair<int32_t, int32_t>, int32_t> unions_;
};

/// A distinct box of a map and the ranks that have it.
struct OwnedBox {
  Box box;
  int32_t ranks = 0;  // of the rank sets
};

/// The distinct boxes of a map, in ascending order. A rank that lists a box twice (two buffers, or
/// a fused and a plain one) owns it once: what it needs crosses the wire once and is copied from
/// there.
std::vector<OwnedBox> owned_boxes(const RankMap& map, NumberedSets& sets) {
  std::vector<std::pair<Box, int32_t>> pairs;
  for (const auto& [rank, shards] : map.shards) {
    for (const Shard& shard : shards) {
      if (!shard.box.empty()) pairs.emplace_back(shard.box, rank);
    }
  }
  std::sort(pairs.begin(), pairs.end());
  pairs.erase(std::unique(pairs.begin(), pairs.end()), pairs.end());
  std::vector<OwnedBox> boxes;
  for (size_t begin = 0, end = 0; begin < pairs.size(); begin = end) {
    std::vector<int32_t> ranks;
    for (end = begin; end < pairs.size() && pairs[end].first == pairs[begin].first; ++end) {
      ranks.push_back(pairs[end].second);
    }
    boxes.push_back({pairs[begin].first, sets.intern(std::move(ranks))});
  }
  return boxes;
}

/// The product of the points at which some box begins or ends, per dimension. Every box is a union
/// of its cells; cells are numbered row-major. For layouts that cut each dimension on its own,
/// which all grids do, the cells are the atoms already.
class CellGrid {
 public:
  CellGrid(int dims, const std::vector<OwnedBox>& a, const std::vector<OwnedBox>& b) : dims_(dims) {
    for (int dim = dims; dim-- > 0;) {
      std::vector<int64_t>& cuts = cuts_[static_cast<size_t>(dim)];
      for (const auto* boxes : {&a, &b}) {
        for (const OwnedBox& owned : *boxes) {
          cuts.push_back(owned.box.lo[dim]);
          cuts.push_back(owned.box.hi[dim]);
        }
      }
      std::sort(cuts.begin(), cuts.end());
      cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
      stride_[static_cast<size_t>(dim)] = cells_;
      cells_ *= size(dim);
    }
  }

  int dims() const { return dims_; }
  int64_t cells() const { return cells_; }
  int64_t size(int dim) const {
    return std::max<int64_t>(0, std::ssize(cuts_[static_cast<size_t>(dim)]) - 1);
  }
  int64_t stride(int dim) const { return stride_[static_cast<size_t>(dim)]; }
  int64_t index(int64_t cell, int dim) const { return cell / stride(dim) % size(dim); }

  /// The box from a cell on, `span` cells long in each dimension.
  Box box(int64_t cell, const Dims& span) const {
    Box result;
    result.lo.count = result.hi.count = dims_;
    for (int dim = 0; dim < dims_; ++dim) {
      const auto& cuts = cuts_[static_cast<size_t>(dim)];
      const int64_t i = index(cell, dim);
      result.lo[dim] = cuts[static_cast<size_t>(i)];
      result.hi[dim] = cuts[static_cast<size_t>(i + span[dim])];
    }
    return result;
  }

  /// Calls visit(cell) for every cell of a box whose faces are cuts.
  template <class Visit>
  void visit(const Box& box, Visit visit) const {
    visit_from(box, 0, 0, visit);
  }

 private:
  template <class Visit>
  void visit_from(const Box& box, int dim, int64_t cell, Visit& visit) const {
    if (dim == dims_) return visit(cell);
    const auto& cuts = cuts_[static_cast<size_t>(dim)];
    const auto first = std::lower_bound(cuts.begin(), cuts.end(), box.lo[dim]);
    for (auto cut = first; *cut < box.hi[dim]; ++cut) {
      visit_from(box, dim + 1, cell + (cut - cuts.begin()) * stride(dim), visit);
    }
  }

  int dims_;
  int64_t cells_ = 1;
  std::array<std::vector<int64_t>, kMaxDims> cuts_;
  std::array<int64_t, kMaxDims> stride_{};
};

/// Which boxes have each cell, as a number of `sets`.
std::vector<int32_t> boxes_of_cells(const CellGrid& grid, const std::vector<OwnedBox>& boxes,
                                    NumberedSets& sets) {
  std::vector<int32_t> found(static_cast<size_t>(grid.cells()), 0);
  for (size_t box = 0; box < boxes.size(); ++box) {
    const int32_t one = sets.intern({static_cast<int32_t>(box)});
    grid.visit(boxes[box].box, [&](int64_t cell) {
      int32_t& set = found[static_cast<size_t>(cell)];
      set = sets.unite(set, one);
    });
  }
  return found;
}

/// Merges neighbouring cells that lie in the same boxes (so that an atom is never in two shards of
/// a rank at once), dimension by dimension from the last. Linear in the cells. Holders and needers
/// in the result are the given sets of boxes.
std::vector<Atom> merge_cells(const CellGrid& grid, const std::vector<int32_t>& holders,
                              const std::vector<int32_t>& needers) {
  const auto cells = static_cast<size_t>(grid.cells());
  Dims one;
  one.count = grid.dims();
  for (int dim = 0; dim < grid.dims(); ++dim) one[dim] = 1;
  std::vector<Dims> spans(cells, one);  // in cells, of the run that begins here
  std::vector<bool> taken(cells, false);
  for (int dim = grid.dims(); dim-- > 0;) {
    if (grid.size(dim) < 2) continue;
    // Backwards, so that a run has grown to its end before the cell in front of it looks at it.
    for (size_t cell = cells; cell-- > 0;) {
      if (taken[cell] || grid.index(static_cast<int64_t>(cell), dim) + 1 == grid.size(dim))
        continue;
      const size_t next = cell + static_cast<size_t>(grid.stride(dim));
      if (taken[next] || holders[cell] != holders[next] || needers[cell] != needers[next]) continue;
      Dims grown = spans[next];
      grown[dim] = 1;
      if (grown != spans[cell]) continue;  // of other extents in the dimensions merged before
      spans[cell][dim] += spans[next][dim];
      taken[next] = true;
    }
  }
  std::vector<Atom> atoms;
  for (size_t cell = 0; cell < cells; ++cell) {
    if (taken[cell] || needers[cell] == 0) continue;
    atoms.push_back(
        {grid.box(static_cast<int64_t>(cell), spans[cell]), holders[cell], needers[cell]});
  }
  std::sort(atoms.begin(), atoms.end(), [](const Atom& a, const Atom& b) { return a.box < b.box; });
  return atoms;
}

/// Makes a demand, one overlay at a time.
class DemandMaker {
 public:
  DemandMaker(const Model& model, const Layout& train, const Layout& gen)
      : model_(model),
        train_(train),
        gen_(gen),
        train_boxes_(train.maps.size()),
        gen_boxes_(gen.maps.size()) {}

  Demand make() {
    std::map<std::pair<int32_t, int32_t>, int32_t> overlay_of;
    for (size_t tensor = 0; tensor < model_.tensors.size(); ++tensor) {
      const std::pair<int32_t, int32_t> maps{train_.tensor_map[tensor], gen_.tensor_map[tensor]};
      const auto [it, is_new] =
          overlay_of.try_emplace(maps, static_cast<int32_t>(demand_.overlays.size()));
      if (is_new) add_overlay(maps.first, maps.second, model_.tensors[tensor]);
      demand_.overlays[static_cast<size_t>(it->second)].tensors.push_back(
          static_cast<int32_t>(tensor));
      demand_.tensor_overlay.push_back(it->second);
    }
    count_classes();
    return std::move(demand_);
  }

 private:
  using BoxCache =
      std::vector<std::optional<std::vector<OwnedBox>>>;  // by map, made when asked for

  void add_overlay(int32_t train_map, int32_t gen_map, const Tensor& tensor) {
    const auto& train = boxes_of(train_boxes_, train_, train_map);
    const auto& gen = boxes_of(gen_boxes_, gen_, gen_map);
    const CellGrid grid(tensor.shape.count, train, gen);
    Overlay overlay{train_map, gen_map, {}, {}};
    NumberedSets train_sets, gen_sets;
    overlay.atoms = merge_cells(grid, boxes_of_cells(grid, train, train_sets),
                                boxes_of_cells(grid, gen, gen_sets));
    for (Atom& atom : overlay.atoms) {
      atom.holders = ranks_of(train_sets[atom.holders], train);
      atom.needers = ranks_of(gen_sets[atom.needers], gen);
      if (atom.holders == 0) {
        fail(fmt::format("tensor {}, box {}", tensor.name, print_box(atom.box)),
             "a missing source: no train rank covers it",
             fmt::format("one that does, because gen rank {} needs it",
                         sets_[atom.needers].front()));
      }
      atom.holders = publish(atom.holders);
      atom.needers = publish(atom.needers);
    }
    demand_.overlays.push_back(std::move(overlay));
  }

  /// All ranks that have one of the boxes.
  int32_t ranks_of(const std::vector<int32_t>& boxes, const std::vector<OwnedBox>& owned) {
    int32_t ranks = 0;
    for (const int32_t box : boxes)
      ranks = sets_.unite(ranks, owned[static_cast<size_t>(box)].ranks);
    return ranks;
  }

  const std::vector<OwnedBox>& boxes_of(BoxCache& cache, const Layout& layout, int32_t map) {
    auto& boxes = cache[static_cast<size_t>(map)];
    if (!boxes) boxes = owned_boxes(layout.maps[static_cast<size_t>(map)], sets_);
    return *boxes;
  }

  /// The number of a set in the result, which has the sets of atoms only, in order of first use.
  int32_t publish(int32_t set) {
    const auto [it, is_new] =
        published_.try_emplace(set, static_cast<int32_t>(demand_.rank_sets.size()));
    if (is_new) demand_.rank_sets.push_back(sets_[set]);
    return it->second;
  }

  void count_classes() {
    std::map<std::pair<int32_t, int32_t>, DemandClass> classes;
    for (const Overlay& overlay : demand_.overlays) {
      int64_t bits = 0;  // of one element of every tensor
      for (const int32_t index : overlay.tensors) {
        const Tensor& tensor = model_.tensors[static_cast<size_t>(index)];
        if (dtype_bits(tensor.dtype) < 8) expect_whole_bytes(tensor, overlay);
        bits += dtype_bits(tensor.dtype);
      }
      for (const Atom& atom : overlay.atoms) {
        DemandClass& demand_class = classes[{atom.holders, atom.needers}];
        demand_class.bytes += atom.box.volume() * bits / 8;
        demand_class.atoms += std::ssize(overlay.tensors);
      }
    }
    for (const auto& [key, demand_class] : classes) {
      const auto& holders = demand_.rank_sets[static_cast<size_t>(key.first)];
      const auto& needers = demand_.rank_sets[static_cast<size_t>(key.second)];
      std::vector<int32_t> both;
      std::set_intersection(holders.begin(), holders.end(), needers.begin(), needers.end(),
                            std::back_inserter(both));
      demand_.classes.push_back({key.first, key.second, demand_class.bytes, demand_class.atoms});
      demand_.copy_bytes += demand_class.bytes * std::ssize(both);
      demand_.bytes += demand_class.bytes * (std::ssize(needers) - std::ssize(both));
    }
  }

  /// Two elements of four bits share a byte, along the last dimension.
  static void expect_whole_bytes(const Tensor& tensor, const Overlay& overlay) {
    for (const Atom& atom : overlay.atoms) {
      const int last = atom.box.dims() - 1;
      if (last >= 0 && atom.box.lo[last] % 2 == 0 && atom.box.hi[last] % 2 == 0) continue;
      fail(fmt::format("tensor {}, box {}", tensor.name, print_box(atom.box)),
           fmt::format("a cut inside a byte of {}", dtype_name(tensor.dtype)),
           "even bounds in the last dimension");
    }
  }

  const Model& model_;
  const Layout& train_;
  const Layout& gen_;
  BoxCache train_boxes_, gen_boxes_;
  NumberedSets sets_;  // of ranks
  std::map<int32_t, int32_t> published_;
  Demand demand_;
};

}  // namespace

Demand make_demand(const Model& model, const Layout& train, const Layout& gen) {
  REFIT_CHECK(train.tensor_map.size() == model.tensors.size());
  REFIT_CHECK(gen.tensor_map.size() == model.tensors.size());
  return DemandMaker(model, train, gen).make();
}

}  // namespace refit
