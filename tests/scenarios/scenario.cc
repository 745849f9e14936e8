#include "tests/scenarios/scenario.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "base/error.h"
#include "base/units.h"

namespace refit::scenarios {
namespace {

constexpr int64_t kMost = int64_t{1} << 50;

Numbers read_numbers(const Value& value) {
  Numbers numbers;
  for (size_t i = 0; i < value.size(); ++i) numbers.push_back(value[i].as_int(-kMost, kMost));
  return numbers;
}

std::vector<int32_t> read_ranks(const Value& value) {
  std::vector<int32_t> ranks;
  for (const int64_t rank : read_numbers(value)) ranks.push_back(static_cast<int32_t>(rank));
  return ranks;
}

std::vector<Numbers> read_lists(const Value& value) {
  std::vector<Numbers> lists;
  for (size_t i = 0; i < value.size(); ++i) lists.push_back(read_numbers(value[i]));
  return lists;
}

std::vector<std::string> read_texts(const Value& value) {
  std::vector<std::string> texts;
  for (size_t i = 0; i < value.size(); ++i) texts.push_back(value[i].as_text());
  return texts;
}

int32_t rank_of(const std::string& key, const Value& value) {
  return static_cast<int32_t>(parse_int(key, 0, 1 << 16, value.place()));
}

/// {rank: ...}, each read by `read`.
template <typename Read>
auto read_by_rank(const Value& value, Read read) {
  std::map<int32_t, decltype(read(value))> result;
  for (const auto& [key, entry] : value.items()) result.emplace(rank_of(key, *entry), read(*entry));
  return result;
}

Block read_block(const Value& value, size_t dims) {
  Block block{.box = read_lists(value.at("box")), .at = Numbers(dims, 0)};
  if (const Value* at = value.find("at")) block.at = read_numbers(*at);
  value.finish();
  return block;
}

TensorSide read_side(const Value& value, size_t dims) {
  TensorSide side;
  if (const Value* mesh = value.find("mesh")) {
    side.mesh = read_numbers(*mesh);
    int64_t count = 1;
    for (const int64_t size : side.mesh) count *= size;
    const Value& ranks = value.at("ranks");
    if (ranks.kind() == Value::Kind::kScalar) {
      for (int64_t i = 0; i < count; ++i) side.ranks.push_back(ranks.as_int(0, 1 << 16) + i);
    } else {
      side.ranks = read_numbers(ranks);
    }
    side.placements = read_texts(value.at("placements"));
  }
  if (const Value* order = value.find("order")) side.order = read_numbers(*order);
  if (const Value* split = value.find("split")) side.split = split->as_text();
  if (const Value* rows = value.find("rows")) side.rows = read_by_rank(*rows, read_lists);
  if (const Value* dim = value.find("dim")) side.dim = dim->as_int(0, 5);
  if (const Value* pad = value.find("pad")) {
    side.pad = read_by_rank(*pad, [](const Value& v) { return v.as_int(0, kMost); });
  }
  if (const Value* blocks = value.find("blocks")) {
    side.blocks = read_by_rank(*blocks, [&](const Value& list) {
      std::vector<Block> result;
      for (size_t i = 0; i < list.size(); ++i) result.push_back(read_block(list[i], dims));
      return result;
    });
    side.local_shape = read_by_rank(value.at("local_shape"), read_numbers);
  }
  if (const Value* replicas = value.find("replicas")) side.replicas = replicas->as_int(1, 1 << 16);
  if (const Value* stride = value.find("stride")) side.stride = stride->as_int(0, 1 << 16);
  if (const Value* storage = value.find("storage")) {
    if (storage->as_text() != "column_major") {
      fail(storage->place(), storage->as_text(), "column_major");
    }
    side.column_major = true;
  }
  if (const Value* shapes = value.find("local_shapes")) {
    side.declared_shapes = read_by_rank(*shapes, read_numbers);
  }
  if (const Value* names = value.find("names")) side.names = read_by_rank(*names, read_texts);
  value.find("pp_stage");  // who claims a name, told by the ranks already
  if (const Value* engines = value.find("engines")) {
    for (size_t i = 0; i < engines->size(); ++i) {
      side.engines.push_back(read_numbers((*engines)[i].at("ranks")));
    }
  }
  if (const Value* dtype = value.find("dtype")) side.dtype = dtype->as_text();
  if (const Value* cast = value.find("cast")) side.cast = cast->as_text();
  value.finish();
  return side;
}

/// `value` is a scenario or an entry of its `tensors`.
ScenarioTensor read_tensor(const Value& value) {
  ScenarioTensor tensor;
  if (const Value* name = value.find("name")) tensor.name = name->as_text();
  if (const Value* repeat = value.find("repeat")) tensor.repeat = repeat->as_int(1, 1 << 20);
  value.find("aliases");  // further names of the same buffer
  if (const Value* shape = value.find("tensor")) {
    tensor.shape = read_numbers(shape->at("shape"));
    tensor.dtype = shape->at("dtype").as_text();
    if (const Value* block = shape->find("block")) tensor.block = read_numbers(*block);
    shape->finish();
  }
  tensor.src = read_side(value.at("src"), tensor.shape.size());
  tensor.dst = read_side(value.at("dst"), tensor.shape.size());
  return tensor;
}

Scenario read_scenario(const Value& value) {
  Scenario scenario;
  scenario.id = value.at("id").as_text();
  scenario.name = value.at("name").as_text();
  for (const char* prose : {"class", "layer", "evidence", "origin", "symptom", "want"}) {
    value.find(prose);
  }
  if (const Value* verify = value.find("verify")) scenario.verify = verify->as_text();
  if (const Value* list = value.find("tensors")) {
    std::map<std::string, int64_t> number;
    for (size_t i = 0; i < list->size(); ++i) {
      const Value* tied = (*list)[i].find("tied_to");
      ScenarioTensor tensor = read_tensor((*list)[i]);
      (*list)[i].finish();
      tensor.fill = tied != nullptr ? number.at(tied->as_text()) : static_cast<int64_t>(i);
      number.emplace(tensor.name, i);
      scenario.tensors.push_back(std::move(tensor));
    }
  } else {
    scenario.tensors.push_back(read_tensor(value));
    scenario.tensors.back().name = "t";
  }
  if (const Value* topology = value.find("topology")) {
    for (const auto& [name, ranks] : topology->at("hosts").items()) {
      scenario.hosts.emplace(name, read_ranks(*ranks));
    }
    const Value* domains = topology->find("nvlink_domains");
    for (size_t i = 0; domains != nullptr && i < domains->size(); ++i) {
      scenario.domains.push_back(read_ranks((*domains)[i]));
    }
    topology->find("nics_per_host");
    topology->finish();
  }
  if (const Value* exec = value.find("exec")) {
    scenario.exec = *exec;
    for (const auto& [key, entry] : exec->items()) scenario.exec_keys.push_back(key);
  }
  if (const Value* faults = value.find("faults")) {
    for (size_t i = 0; i < faults->size(); ++i) {
      const Value& fault = (*faults)[i];
      scenario.fault_kinds.push_back(fault.at("kind").as_text());
      if (const Value* rank = fault.find("rank")) {
        scenario.fault_rank[fault.at("kind").as_text()] =
            static_cast<int32_t>(rank->as_int(0, 1 << 16));
      }
    }
  }
  scenario.expect = value.at("expect");
  for (const auto& [key, entry] : scenario.expect->items()) {
    if (key == "error") {
      scenario.error_words = read_texts(*entry);
    } else {
      scenario.expect_keys.push_back(key);
    }
  }
  value.finish();
  return scenario;
}

}  // namespace

std::map<int32_t, int64_t> Scenario::expected_by_rank(const std::string& key) const {
  return read_by_rank(expect->at(key), [](const Value& v) { return v.as_int(0, kMost); });
}

int64_t Scenario::expected(const std::string& key) const {
  return expect->at(key).as_int(0, kMost);
}

bool Scenario::expects(const std::string& key) const {
  return std::find(expect_keys.begin(), expect_keys.end(), key) != expect_keys.end();
}

bool Scenario::has_exec(const std::string& key) const {
  return std::find(exec_keys.begin(), exec_keys.end(), key) != exec_keys.end();
}

int64_t Scenario::exec_number(const std::string& key, int64_t fallback) const {
  return has_exec(key) ? exec->at(key).as_int(0, kMost) : fallback;
}

std::vector<std::string> scenario_files() {
  std::vector<std::string> files{REFIT_SOURCE_DIR "/tests/scenarios/own.yaml"};
  if (const char* file = std::getenv("REFIT_SCENARIOS")) {
    files.push_back(file);
    return files;
  }
  const char* shared = std::getenv("REFIT_SHARED");
  const std::filesystem::path folder(shared != nullptr ? shared : REFIT_SOURCE_DIR "/../shared");
  const std::filesystem::path file = folder / "scenarios" / "scenarios.yaml";
  if (std::filesystem::exists(file)) files.push_back(file.string());
  return files;
}

std::vector<Scenario> load_scenarios(const std::string& path) {
  const Value root = load_document(path);
  std::vector<Scenario> scenarios;
  for (size_t i = 0; i < root.size(); ++i) scenarios.push_back(read_scenario(root[i]));
  return scenarios;
}

}  // namespace refit::scenarios
