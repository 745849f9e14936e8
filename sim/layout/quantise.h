#pragma once

#include <cstdint>
#include <vector>

#include "sim/layout/layout.h"
#include "sim/model/model.h"

namespace refit {

// From what a user says of dtypes to what moves: which tensors there are, in which dtype they cross
// wires, and who can supply what. Companions (scales) become tensors of their own, which no train
// rank holds but some can compute.

/// How a moved tensor changes on its way; by tensor of the model.
struct Cast {
  Dtype train = Dtype::kBf16,
        gen = Dtype::kBf16;  // in memory; what is on wires is the tensor's own dtype
  Format format = Format::kNone;
  Output output = Output::kData;
  int32_t source = -1;  // of a companion: the weight
  // Some blocks are whole on no train rank. So gen ranks put them together in staging first, in the
  // train dtype, and cast there.
  bool assembled = false;
  // Maps among those of the layouts: what train ranks can supply (whole blocks), and what gen ranks
  // have.
  int32_t supply = -1, wanted = -1;
  bool operator==(const Cast&) const = default;
};

/// Is it as it was on the other side?
bool is_plain(const Cast& cast);

/// Replaces the model by what moves, extends both layouts to match, and returns the casts.
///
/// Where only dtypes differ, the wire has the narrower one (of equal ones the train side's), unless
/// the layout says at which end to cast. A quantised weight is cast by train ranks where every
/// block that is needed is whole on some of them; else gen ranks assemble it, where their own boxes
/// are whole blocks, or where a matrix has a global scale; else it is refused, naming tensor and
/// box. Until a search has placed them, the train maps are the weights' own (no schedule can do
/// better than as if every holder of a part could supply it), and companions of assembled weights
/// are wanted by nobody.
///
/// Refuses: dtypes that differ where no layout declares a cast; dtypes that cannot be converted; a
/// quantised train side.
std::vector<Cast> apply_casts(Model& model, Layout& train, Layout& gen);

/// Gives the scales that a model holds itself (an fp8 checkpoint) the boxes that follow from their
/// weights' ("w" and "w_scale_inv"): a cut inside a block is refused, since no rank could use its
/// scale. What `whole_scales` says goes.
void follow_weights(const Model& model, Layout& layout);

/// By tensor of the model: the weight that it is the scale of, or -1. Told by names, dtypes and
/// shapes.
std::vector<int32_t> weights_of_scales(const Model& model);

}  // namespace refit
