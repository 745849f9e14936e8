#include "sim/layout/layout.h"

#include <filesystem>
#include <system_error>

#include "base/error.h"
#include "base/file.h"
#include "sim/layout/frameworks.h"
#include "sim/layout/spec.h"

namespace refit {
namespace {

using Loader = Layout (*)(const std::string& text, const Model& model, int32_t first_rank);
struct Kind {
  std::string_view name;
  Loader load;
};
constexpr Kind kKinds[] = {{"megatron", load_megatron}, {"vllm", load_vllm}, {"fsdp", load_fsdp}};

const Kind* find_kind(std::string_view spec) {
  for (const Kind& kind : kKinds) {
    if (kind.name == spec_kind(spec)) return &kind;
  }
  return nullptr;
}

bool is_json(std::string_view text) {
  const size_t first = text.find_first_not_of(" \t\r\n");
  return first != std::string_view::npos && text[first] == '{';
}

/// The content of the file that `spec` names.
std::string read_layout_file(const std::string& spec) {
  std::error_code ignored;  // what cannot be looked up is no file
  if (std::filesystem::is_regular_file(spec, ignored)) return read_file(spec);
  const std::string place = "layout " + quote(spec);
  const std::string_view kind = spec_kind(spec);
  const std::string found = kind.empty() ? "no such file" : "unknown kind " + quote(kind);
  fail(place, found,
       "megatron:KEY=VALUE,..., vllm:..., fsdp:... or the path of an NCCL M2N system JSON");
}

}  // namespace

Layout load_layout(const std::string& spec, const Model& model, Side side, int32_t first_rank) {
  Layout layout;
  if (const Kind* kind = find_kind(spec)) {
    layout = kind->load(spec, model, first_rank);
  } else if (is_json(spec)) {
    layout = parse_m2n_system(spec, "layout", model, side, first_rank);
  } else {
    const std::string text = read_layout_file(spec);
    if (!is_json(text)) fail(spec, "no JSON object", "an NCCL M2N system JSON");
    layout = parse_m2n_system(text, spec, model, side, first_rank);
  }
  layout.spec = spec;
  return layout;
}

std::string resolve_layout(const std::string& spec) {
  return find_kind(spec) != nullptr || is_json(spec) ? spec : read_layout_file(spec);
}

}  // namespace refit
