// Every scenario of the file, by all that the tests can exercise; the rest is listed with reasons.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <set>

#include "base/error.h"
#include "sim/search/strategies.h"
#include "tests/scenarios/elements.h"
#include "tests/scenarios/layout_text.h"
#include "tests/scenarios/planning.h"
#include "tests/scenarios/replay.h"
#include "tests/scenarios/waiting.h"

namespace refit::scenarios {
namespace {

const std::vector<Scenario>& all_scenarios() {
  static const std::vector<Scenario> kAll = [] {
    std::vector<Scenario> all;
    for (const std::string& file : scenario_files()) {
      const std::vector<Scenario> some = load_scenarios(file);
      all.insert(all.end(), some.begin(), some.end());
    }
    return all;
  }();
  return kAll;
}

bool is_planned(const Scenario& scenario) {
  return scenario.verify.empty() && !must_be_refused(scenario);
}

std::vector<std::string> strategies() {
  std::vector<std::string> names;
  for (const Strategy& strategy : all_strategies()) {  // peers' schedules refuse some of them
    if (!strategy.baseline) names.emplace_back(strategy.name);
  }
  return names;
}

bool has_word(std::string message, const std::vector<std::string>& words) {
  std::transform(message.begin(), message.end(), message.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return std::any_of(words.begin(), words.end(), [&](const std::string& word) {
    return message.find(word) != std::string::npos;
  });
}

/// The message of the input error that `work` ends in; "" when it ends in none.
template <typename Work>
std::string refusal(Work work) {
  try {
    work();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInput) << error.what();
    return error.what();
  }
  return "";
}

// ------------------------------------------------------------------------------------- layouts

/// The buffer of a rank as the layout under test has it, in the order of memory.
Numbers held_in_memory(const Layout& layout, int32_t tensor, int32_t rank, const Dims& shape,
                       size_t cells) {
  Numbers buffer(cells, kPad);
  const RankMap& map =
      layout.maps[static_cast<size_t>(layout.tensor_map[static_cast<size_t>(tensor)])];
  const std::vector<Shard>* shards = map.find(rank);
  if (shards == nullptr) return buffer;
  for (const Shard& shard : *shards) {
    const Dims extents = shard.box.extents();
    for (int64_t cell = 0; cell < extents.product(); ++cell) {
      int64_t id = 0, at = shard.offset, rest = cell, step = 1;
      for (int dim = shape.count; dim-- > 0;) {
        const int64_t i = rest % extents[dim];
        rest /= extents[dim];
        id += (shard.box.lo[dim] + i) * step;
        at += i * shard.stride[dim];
        step *= shape[dim];
      }
      EXPECT_LT(at, std::ssize(buffer));
      if (at < std::ssize(buffer)) buffer[static_cast<size_t>(at)] = id;
    }
  }
  return buffer;
}

void expect_layout(const Scenario& scenario, const Model& model, const Layout& layout, bool train) {
  int32_t index = 0;
  for (const ScenarioTensor& tensor : scenario.tensors) {
    const TensorSide& side = train ? tensor.src : tensor.dst;
    for (int64_t repeat = 0; repeat < tensor.repeat; ++repeat, ++index) {
      const Dims& shape = model.tensors[static_cast<size_t>(index)].shape;
      for (const auto& [rank, local] : local_elements(tensor.shape, side)) {
        Numbers memory(local.ids.size());
        for (int64_t i = 0; i < std::ssize(local.ids); ++i) {
          memory[static_cast<size_t>(memory_index(local.shape, i, side.column_major))] =
              local.ids[static_cast<size_t>(i)];
        }
        EXPECT_EQ(held_in_memory(layout, index, rank, shape, memory.size()), memory)
            << tensor.name << " on " << (train ? "train" : "gen") << " rank " << rank;
      }
    }
  }
}

TEST(Scenarios, LayoutFilesHoldTheRightElements) {
  for (const Scenario& scenario : all_scenarios()) {
    if (!is_planned(scenario)) continue;
    SCOPED_TRACE(scenario.id + " " + scenario.name);
    const Problem problem = make_problem(scenario);
    expect_layout(scenario, problem.model, problem.train, true);
    expect_layout(scenario, problem.model, problem.gen, false);
  }
}

// --------------------------------------------------------------------------------------- plans

void expect_deliveries(const Scenario& scenario, const Traffic& traffic) {
  int64_t total = 0;
  for (const auto& [rank, bytes] : scenario.expected_by_rank("bytes_received_per_rank")) {
    const auto found = traffic.received.find(rank);
    EXPECT_EQ(found == traffic.received.end() ? 0 : found->second, bytes) << "rank " << rank;
    total += bytes;
  }
  EXPECT_EQ(scenario.expected("total_bytes"), total);
  int64_t received = 0;
  for (const auto& [rank, bytes] : traffic.received) received += bytes;
  EXPECT_EQ(received, total);
  if (scenario.expects("empty_dst_ranks")) {
    const Value& ranks = scenario.expect->at("empty_dst_ranks");
    for (size_t i = 0; i < ranks.size(); ++i) {
      const auto empty = static_cast<int32_t>(ranks[i].as_int(0, 1 << 16));
      for (const auto& [pair, bytes] : traffic.pairs) EXPECT_NE(pair.second, empty);
    }
  }
  if (scenario.has_exec("max_sources_per_dst")) {
    EXPECT_LE(traffic.most_sources, scenario.exec_number("max_sources_per_dst", 0));
  }
}

void expect_direct_pairs(const Scenario& scenario, const Traffic& traffic) {
  std::map<int32_t, int64_t> sent, received;
  std::map<std::string, int64_t> pairs;
  int64_t wire = 0;
  for (const auto& [pair, bytes] : traffic.pairs) {
    if (pair.first == pair.second) continue;
    pairs[fmt::format("{}->{}", pair.first, pair.second)] = bytes;
    sent[pair.first] += bytes;
    received[pair.second] += bytes;
    wire += bytes;
  }
  if (scenario.expects("pair_bytes")) {
    std::map<std::string, int64_t> expected;
    for (const auto& [pair, bytes] : scenario.expect->at("pair_bytes").items()) {
      expected[pair] = bytes->as_int(0, int64_t{1} << 50);
    }
    EXPECT_EQ(pairs, expected);
  }
  if (scenario.expects("pair_count")) {
    EXPECT_EQ(std::ssize(pairs), scenario.expected("pair_count"));
  }
  if (scenario.expects("remote_bytes_per_rank")) {
    for (const auto& [rank, bytes] : scenario.expected_by_rank("remote_bytes_per_rank")) {
      EXPECT_EQ(received[rank], bytes) << "rank " << rank;
    }
  } else {
    EXPECT_EQ(wire, scenario.expected("total_bytes"));
  }
  if (scenario.expects("min_max_egress_bytes")) {
    int64_t busiest = 0;
    for (const auto& [rank, bytes] : sent) busiest = std::max(busiest, bytes);
    const int64_t least = scenario.expected("min_max_egress_bytes");
    EXPECT_GE(busiest, least);
    EXPECT_LE(4 * busiest, 5 * least) << "busiest source " << busiest << ", possible " << least;
    EXPECT_LE(busiest, scenario.expected("naive_max_egress_bytes"));
  }
  if (scenario.expects("max_descriptors_per_pair")) {
    for (const auto& [pair, pieces] : traffic.descriptors) {
      EXPECT_LE(pieces, scenario.expected("max_descriptors_per_pair"));
    }
  }
  if (scenario.expects("max_setup_rounds")) {
    EXPECT_LE(traffic.rounds, scenario.expected("max_setup_rounds"));
  }
  if (scenario.expects("inter_host_unicast_bytes")) {
    EXPECT_EQ(traffic.between_hosts, scenario.expected("inter_host_unicast_bytes"));
  }
}

void expect_topology(const Scenario& scenario, const Plan& plan, const Traffic& traffic) {
  for (const std::vector<int32_t>& domain : scenario.domains) {
    for (const int32_t rank : domain) EXPECT_TRUE(same_domain(plan, domain.front(), rank));
  }
  if (scenario.expects("inter_host_min_bytes")) {
    EXPECT_GE(traffic.between_hosts, scenario.expected("inter_host_min_bytes"));
  }
}

int64_t gen_bytes(const Plan& plan, int32_t rank) {
  int64_t bytes = 0;
  for (const PlanTensor& tensor : plan.tensors) {
    const int64_t elements = buffer_elements(plan, Side::kGen, tensor.gen_buffer, rank);
    bytes += elements * dtype_bits(tensor.gen_dtype) / 8;
  }
  return bytes;
}

TEST(Scenarios, PlansMoveWhatTheyShould) {
  for (const Scenario& scenario : all_scenarios()) {
    if (!is_planned(scenario)) continue;
    const Problem problem = make_problem(scenario);
    for (const std::string& strategy : strategies()) {
      SCOPED_TRACE(fmt::format("{} {}, {}", scenario.id, scenario.name, strategy));
      const Plan plan = plan_scenario(scenario, problem, strategy);  // checks the plan
      const Traffic traffic = count_traffic(plan);
      expect_deliveries(scenario, traffic);
      expect_topology(scenario, plan, traffic);
      if (scenario.expects("max_staging_bytes")) {
        for (int32_t rank = 0; rank < std::ssize(plan.ranks); ++rank) {
          EXPECT_LE(staging_use(plan, rank).total(), scenario.expected("max_staging_bytes"));
        }
      }
      if (scenario.expects("dst_buffer_bytes_per_rank")) {
        for (const auto& [rank, bytes] : scenario.expected_by_rank("dst_buffer_bytes_per_rank")) {
          EXPECT_EQ(gen_bytes(plan, rank), bytes) << "rank " << rank;
        }
      }
      if (strategy != "direct") continue;
      expect_direct_pairs(scenario, traffic);
      if (scenario.expects("max_messages")) {
        EXPECT_LE(plan_totals(plan).transfers, scenario.expected("max_messages"));
      }
    }
  }
}

// -------------------------------------------------------------------------------------- replay

TEST(Scenarios, ReplaysArriveByteForByte) {
  for (const Scenario& scenario : all_scenarios()) {
    if (!is_planned(scenario)) continue;
    const Problem problem = make_problem(scenario, "int32");
    int64_t own_bits = 32;
    for (const ScenarioTensor& tensor : scenario.tensors) {
      own_bits = std::min<int64_t>(own_bits, dtype_bits(parse_dtype(tensor.dtype, scenario.id)));
    }
    for (const std::string& strategy : strategies()) {
      SCOPED_TRACE(fmt::format("{} {}, {}", scenario.id, scenario.name, strategy));
      const Plan plan =
          plan_scenario(scenario, problem, strategy, 32.0 / static_cast<double>(own_bits));
      for (const std::string& line : replay(scenario, plan)) ADD_FAILURE() << line;
    }
  }
}

// ------------------------------------------------------------------------------------- refusals

void expect_names(const Scenario& scenario) {
  const Model model = names_model(scenario);
  const std::string message =
      refusal([&] { load_layout(names_text(scenario, true), model, Side::kTrain, 0); });
  EXPECT_TRUE(has_word(message, scenario.error_words)) << message;
  const auto count = [&](const std::string& key, const std::string& what) {
    const int64_t number = scenario.expected(key);
    const std::string text = fmt::format("{} {}", number, what);
    EXPECT_EQ(message.find(number == 0 ? what : text) != std::string::npos, number != 0)
        << key << " " << number << " in: " << message;
  };
  count("missing_names", "missing tensors");
  count("duplicate_source_names", "tensors with duplicate entries");
  count("unconsumed_names", "unexpected names");
  EXPECT_EQ(refusal([&] { load_layout(names_text(scenario, false), model, Side::kGen, 0); }), "");
}

void expect_ranks(const Scenario& scenario) {
  const Model model = make_model(scenario);
  const std::string message =
      refusal([&] { load_layout(engines_text(scenario), model, Side::kGen, 0); });
  EXPECT_TRUE(has_word(message, scenario.error_words)) << message;
  const Value& duplicate = scenario.expect->at("duplicate_dst_ranks");
  EXPECT_NE(message.find("rank " + duplicate[0].as_text()), std::string::npos) << message;
}

void expect_local_shapes(const Scenario& scenario) {
  const Model model = make_model(scenario);
  const auto load = [&](bool declare, int32_t only_rank) {
    return load_layout(layout_text(scenario, true, declare, only_rank), model, Side::kTrain, 0);
  };
  const std::string message = refusal([&] { load(true, -1); });
  EXPECT_TRUE(has_word(message, scenario.error_words)) << message;

  std::vector<int64_t> mismatching;
  const Layout layout = load(false, -1);
  for (const auto& [rank, declared] : scenario.tensors[0].src.declared_shapes) {
    const int32_t only = rank;
    if (!refusal([&] { load(true, only); }).empty()) mismatching.push_back(rank);
    const std::vector<Shard>* shards = layout.maps[0].find(rank);
    ASSERT_NE(shards, nullptr);
    ASSERT_EQ(shards->size(), 1u);
    Numbers implied;
    const Value& shape =
        scenario.expect->at("layout_implies_local_shapes").at(std::to_string(rank));
    for (size_t i = 0; i < shape.size(); ++i) implied.push_back(shape[i].as_int(0, 1 << 30));
    EXPECT_EQ(shards->front().box.extents(), Dims(implied)) << "rank " << rank;
  }
  Numbers expected;
  const Value& ranks = scenario.expect->at("mismatching_src_ranks");
  for (size_t i = 0; i < ranks.size(); ++i) expected.push_back(ranks[i].as_int(0, 1 << 16));
  EXPECT_EQ(mismatching, expected);
}

/// A quantised weight that the train side has, with its scales.
void expect_blocks(const Scenario& scenario) {
  const ScenarioTensor& tensor = scenario.tensors[0];
  ASSERT_EQ(tensor.block, (Numbers{128, 128}));
  Model model = make_model(scenario);
  const Dims shape = model.tensors[0].shape;
  Tensor scales = model.tensors[0];
  scales.name += companion_suffix(Format::kFp8Block, Output::kScale);
  scales.shape = output_shape(Format::kFp8Block, Output::kScale, shape);
  scales.dtype = Dtype::kFp32;
  EXPECT_EQ(scales.shape.product(), scenario.expected("global_scale_blocks"));
  const Layout layout = load_layout(layout_text(scenario, true), model, Side::kTrain, 0);
  model.tensors.push_back(scales);
  const std::string text =
      fmt::format("  - {{name: {}, absent: true}}\nscales: follow\n", scales.name);
  const std::string message =
      refusal([&] { load_layout(layout_text(scenario, true) + text, model, Side::kTrain, 0); });
  EXPECT_TRUE(has_word(message, scenario.error_words)) << message;
  EXPECT_NE(message.find(model.tensors[0].name), std::string::npos) << message;
  EXPECT_EQ(
      refusal([&] { load_layout(layout_text(scenario, false) + text, model, Side::kGen, 0); }), "");

  int64_t concatenated = 0;
  std::set<int64_t> edges;
  for (const auto& [rank, shards] : layout.maps[0].shards) {
    for (const Shard& shard : shards) {
      concatenated +=
          output_shape(Format::kFp8Block, Output::kScale, shard.box.extents()).product();
      const Box blocks = whole_blocks(Format::kFp8Block, shape, shard.box);
      for (int dim = 0; dim < shard.box.dims(); ++dim) {
        if (blocks.lo[dim] != shard.box.lo[dim]) edges.insert(shard.box.lo[dim]);
        if (blocks.hi[dim] != shard.box.hi[dim]) edges.insert(shard.box.hi[dim]);
      }
    }
  }
  EXPECT_EQ(concatenated, scenario.expected("scale_blocks_if_concatenated"));
  std::set<int64_t> expected;
  const Value& misaligned = scenario.expect->at("misaligned_edges");
  for (size_t i = 0; i < misaligned.size(); ++i) {
    expected.insert(misaligned[i].as_int(0, int64_t{1} << 40));
  }
  EXPECT_EQ(edges, expected);
}

TEST(Scenarios, BadInputIsRefused) {
  for (const Scenario& scenario : all_scenarios()) {
    if (!must_be_refused(scenario)) continue;
    SCOPED_TRACE(scenario.id + " " + scenario.name);
    if (scenario.verify == "names") {
      expect_names(scenario);
    } else if (scenario.verify == "ranks") {
      expect_ranks(scenario);
    } else if (scenario.verify == "block") {
      expect_blocks(scenario);
    } else if (scenario.verify == "local_shape") {
      expect_local_shapes(scenario);
    } else {
      const std::string message = refusal([&] { make_problem(scenario); });
      EXPECT_TRUE(has_word(message, scenario.error_words)) << "'" << message << "'";
    }
  }
}

// ---------------------------------------------------------------------------------- the account

TEST(Scenarios, AreAllAccountedFor) {
  std::set<std::string> ids;
  int full = 0, part = 0;
  for (const Scenario& scenario : all_scenarios()) {
    EXPECT_TRUE(ids.insert(scenario.id).second) << scenario.id << " a second time";
    std::vector<Waiting> waiting;
    EXPECT_NO_THROW(waiting = waiting_for(scenario)) << scenario.id;
    EXPECT_TRUE(is_planned(scenario) || must_be_refused(scenario)) << scenario.id;
    ++(waiting.empty() ? full : part);
    for (const Waiting& feature : waiting) {
      fmt::print("{} {}: {} waits: {}\n", scenario.id, scenario.name, feature.feature,
                 feature.reason);
    }
  }
  fmt::print("{} scenarios: {} in full, {} in part\n", all_scenarios().size(), full, part);
  if (scenario_files().size() == 1) GTEST_SKIP() << "skipped: no ../shared; our own scenarios ran";
}

}  // namespace
}  // namespace refit::scenarios
