#pragma once

#include <cstdint>
#include <vector>

#include "sim/layout/layout.h"
#include "sim/model/model.h"

namespace refit {

/// Largest box of a tensor that every shard of every rank has as a whole or not at all.
struct Atom {
  Box box;
  int32_t holders = -1;  // of Demand::rank_sets
  int32_t needers = -1;  // of Demand::rank_sets
};

/// The atoms of all tensors that have the same shape and the same maps on both sides. They tile
/// what is needed.
struct Overlay {
  int32_t train_map = -1, gen_map = -1;
  std::vector<Atom> atoms;
  std::vector<int32_t> tensors;
};

/// All atoms with the same holders and the same needers: what search routes as one.
struct DemandClass {
  int32_t holders = -1, needers = -1;
  int64_t bytes = 0;  // counted once
  int64_t atoms = 0;  // over all tensors
};

/// Who needs what from whom. A needer that is also a holder needs a local copy only.
struct Demand {
  std::vector<std::vector<int32_t>> rank_sets;  // distinct, each ascending
  std::vector<Overlay> overlays;
  std::vector<int32_t> tensor_overlay;  // by tensor
  std::vector<DemandClass> classes;     // ordered by (holders, needers)
  int64_t bytes = 0;                    // over all needers: what direct delivery would put on wires
  int64_t copy_bytes = 0;               // of needers that hold it themselves
};

/// Overlays both sides. Fails when some needed element has no holder (names tensor, box, rank), and
/// when a box of a 4-bit tensor does not begin and end on bytes. Work and memory per pair of maps
/// are linear in the cells between all their cuts, which for layouts made of meshes are the atoms.
Demand make_demand(const Model& model, const Layout& train, const Layout& gen);

}  // namespace refit
