#include "sim/layout/stages.h"

#include <fmt/format.h>

#include <numeric>

#include "base/error.h"
#include "base/units.h"
#include "sim/layout/spec.h"

namespace refit {
namespace {

constexpr int32_t kMaxLayers = 1 << 20;

/// Layers of each stage where `first` or `last` is said.
std::vector<int32_t> deal_around_ends(int32_t layers, const StageOptions& options,
                                      const std::string& place) {
  const int32_t others =
      options.pp - (options.first.has_value() ? 1 : 0) - (options.last.has_value() ? 1 : 0);
  const int32_t rest = layers - options.first.value_or(0) - options.last.value_or(0);
  const std::string expected = fmt::format("first + last + a multiple of {} other stages", others);
  if (others < 0 || rest < 0 || (others == 0 ? rest != 0 : rest % others != 0)) {
    fail(place,
         fmt::format("{} layers over pp={} with first={} and last={}", layers, options.pp,
                     options.first ? fmt::to_string(*options.first) : "unset",
                     options.last ? fmt::to_string(*options.last) : "unset"),
         expected);
  }
  const auto pp = static_cast<size_t>(options.pp);
  std::vector<int32_t> counts(pp, others == 0 ? 0 : rest / others);
  if (options.first) counts.front() = *options.first;
  if (options.last) counts.back() = *options.last;
  return counts;
}

/// Layers of each stage where nothing is said.
std::vector<int32_t> deal_evenly(int32_t layers, const StageOptions& options,
                                 const std::string& place, std::vector<std::string>& notes) {
  const int32_t base = layers / options.pp, longer = layers % options.pp;
  if (longer != 0) {
    if (options.vpp > 1) {
      fail(place, fmt::format("{} layers", layers),
           fmt::format("a multiple of pp * vpp = {} * {}, or layers=", options.pp, options.vpp));
    }
  }
  std::vector<int32_t> counts(static_cast<size_t>(options.pp), base);
  for (int32_t i = 0; i < longer; ++i) {
    const int32_t stage = options.remainder == Remainder::kFirst        ? i
                          : options.remainder == Remainder::kBeforeLast ? options.pp - 2 - i
                                                                        : options.pp - 1 - i;
    ++counts[static_cast<size_t>(stage)];
  }
  if (longer == 0) return counts;
  std::string runs;  // "13 of 4 layers, then 3 of 3"
  for (size_t begin = 0, end = 0; begin < counts.size(); begin = end) {
    while (end < counts.size() && counts[end] == counts[begin]) ++end;
    runs += fmt::format("{}{} of {}{}", begin == 0 ? "" : ", then ", end - begin, counts[begin],
                        begin == 0 ? " layers" : "");
  }
  notes.push_back(fmt::format("{} layers over {} pipeline stages: {}", layers, options.pp, runs));
  return counts;
}

/// Chunks in the order of layers: `vpp` rounds over the stages.
std::vector<int32_t> interleave(const std::vector<int32_t>& counts, int32_t vpp,
                                const std::string& place) {
  std::vector<int32_t> chunks;
  for (int32_t round = 0; round < vpp; ++round) {
    for (size_t stage = 0; stage < counts.size(); ++stage) {
      if (counts[stage] % vpp != 0) {
        fail(place, fmt::format("stage {} of {} layers", stage, counts[stage]),
             fmt::format("a multiple of vpp={}, or layers=", vpp));
      }
      chunks.push_back(counts[stage] / vpp);
    }
  }
  return chunks;
}

}  // namespace

std::vector<int32_t> parse_layers(std::string_view text, int32_t chunks, const std::string& place) {
  std::vector<int32_t> layers;
  for (const std::string_view part : split_text(text, '|')) {
    const size_t star = part.find('*');
    const int64_t count = parse_int(part.substr(0, star), 0, kMaxLayers, place);
    const int64_t times =
        star == std::string_view::npos ? 1 : parse_int(part.substr(star + 1), 1, kMaxLayers, place);
    if (times > chunks - std::ssize(layers)) {
      fail(place, fmt::format("at least {} stages", std::ssize(layers) + times),
           fmt::format("{}, that is pp * vpp", chunks));
    }
    layers.insert(layers.end(), static_cast<size_t>(times), static_cast<int32_t>(count));
  }
  if (std::ssize(layers) != chunks) {
    fail(place, fmt::format("{} stages", layers.size()),
         fmt::format("{}, that is pp * vpp", chunks));
  }
  return layers;
}

Stages deal_layers(int32_t layers, const StageOptions& options, const std::string& place) {
  Stages stages;
  std::vector<int32_t> chunks = options.layers;
  if (!chunks.empty()) {
    const int64_t total = std::accumulate(chunks.begin(), chunks.end(), int64_t{0});
    if (options.first || options.last) fail(place, "layers= beside first= or last=", "one of them");
    if (total != layers) {
      fail(place, fmt::format("layers= with {} in all", total),
           fmt::format("{}, the model's", layers));
    }
  } else if (options.first || options.last) {
    chunks = interleave(deal_around_ends(layers, options, place), options.vpp, place);
  } else {
    chunks = interleave(deal_evenly(layers, options, place, stages.notes), options.vpp, place);
  }
  for (size_t chunk = 0; chunk < chunks.size(); ++chunk) {
    const auto stage = static_cast<int32_t>(chunk % static_cast<size_t>(options.pp));
    stages.of_layer.insert(stages.of_layer.end(), static_cast<size_t>(chunks[chunk]), stage);
  }
  REFIT_CHECK(std::ssize(stages.of_layer) == layers);
  return stages;
}

}  // namespace refit
