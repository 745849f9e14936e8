#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace refit {

/// Which stages take one layer more where the layers do not divide: the first ones; the ones before
/// the last, backwards (vLLM's get_pp_indices, which spares the stages of head and embedding); the
/// last ones (SGLang's).
enum class Remainder : uint8_t { kFirst, kBeforeLast, kLast };

/// How many layers each pipeline stage takes, as a user may say it.
struct StageOptions {
  int32_t pp = 1;
  int32_t vpp = 1;  // virtual stages per rank: layers are dealt in vpp rounds of pp chunks
  std::optional<int32_t> first;  // layers of the first stage
  std::optional<int32_t> last;   // layers of the last stage
  std::vector<int32_t> layers;   // of every chunk in order, pp * vpp entries; empty: not said
  Remainder remainder = Remainder::kFirst;
};

/// "3|4*14|2": three, then fourteen times four, then two. Must have `chunks` entries.
std::vector<int32_t> parse_layers(std::string_view text, int32_t chunks, const std::string& place);

struct Stages {
  std::vector<int32_t> of_layer;  // stage that holds a layer
  std::vector<std::string> notes;
};

/// Deals the layers. With nothing said each stage takes layers / pp, and where that does not divide
/// layers mod pp stages take one more, as `remainder` says, which a note tells. `first` and `last`
/// leave the rest to the other stages in equal parts. With vpp > 1 a stage's layers come in vpp
/// equal chunks, chunk i on stage i mod pp, as Megatron's interleaved schedule has it.
Stages deal_layers(int32_t layers, const StageOptions& options, const std::string& place);

}  // namespace refit
