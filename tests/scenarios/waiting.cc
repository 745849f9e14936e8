#include "tests/scenarios/waiting.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "base/error.h"

namespace refit::scenarios {
namespace {

/// What the tests exercise.
constexpr std::string_view kExercised[] = {
    "verify.names",
    "verify.ranks",
    "verify.local_shape",
    "verify.uncovered",
    "exec.world",
    "exec.rounds",
    "exec.timeout_s",
    "exec.start_delay_s",  // as an order: the late rank begins after all others
    "exec.staging_limit_bytes",
    "exec.max_sources_per_dst",
    "exec.prefill_dst",
    "exec.poison_staging",           // what is written is poisoned; nothing is staged in between
    "exec.between_rounds",           // reallocate_source_storage
    "exec.plan_with_empty_storage",  // a plan never sees storage
    "exec.hooks",
    "exec.finalize_hook",
    "exec.frozen",  // a plan never names it
    "exec.reader_thread",
    "exec.resume_attempt_during_write",
    "faults.raise_in_finalize",
    "faults.kill",
    "expect.finalize_calls",
    "expect.bytes_received_per_rank",
    "expect.total_bytes",
    "expect.remote_bytes_per_rank",
    "expect.pair_bytes",
    "expect.pair_count",
    "expect.min_max_egress_bytes",
    "expect.naive_max_egress_bytes",
    "expect.crc32_per_rank",
    "expect.crc32",
    "expect.empty_dst_ranks",
    "expect.inter_host_min_bytes",
    "expect.inter_host_unicast_bytes",
    "expect.padded_wire_bytes_if_uniform",  // wire bytes stay those of the demand
    "expect.runs_per_rank",                 // the price of element runs; we have descriptors
    "expect.max_descriptors_per_pair",
    "expect.max_messages",
    "expect.max_setup_rounds",
    "expect.max_staging_bytes",
    "expect.missing_names",
    "expect.unconsumed_names",
    "expect.duplicate_source_names",
    "expect.duplicate_dst_ranks",
    "expect.mismatching_src_ranks",
    "expect.layout_implies_local_shapes",
    "expect.uncovered_elements",
    "expect.notes",
    "verify.dtype",
    "dst.dtype",
    "src.dtype",
    "expect.dst_buffer_bytes_per_rank",
    "verify.block",
    "expect.global_scale_blocks",
    "expect.scale_blocks_if_concatenated",
    "expect.misaligned_edges",
};

struct Reason {
  std::string_view feature, reason;
};

constexpr std::string_view kSlow = "needs a backend that can be slowed down";
constexpr std::string_view kConnections = "the host backend opens no connections: mpi, nccl";
constexpr std::string_view kFaults = "needs faults injected into a running executor";
constexpr std::string_view kBuckets =
    "there are no buckets: messages go from shard to shard in place, the staging bound instead";

constexpr Reason kWaiting[] = {
    {"exec.after_round", "buffers that the engine relays are not detected at binding yet"},
    {"exec.force_source", "replicas are chosen by the search; no knob forces one"},
    {"exec.copy_delay_s", kSlow},
    {"exec.throttle_bytes_per_s", kSlow},
    {"exec.heartbeat_timeout_s", kSlow},
    {"exec.accept_order", kConnections},
    {"exec.single_session_per_receiver", kConnections},
    {"exec.count", "the host backend registers nothing: nccl"},
    {"exec.bucket_bytes", kBuckets},
    {"exec.chunk_bytes", kBuckets},
    {"exec.shared_bucket", kBuckets},
    {"expect.min_buckets", kBuckets},
    {"faults.join", kFaults},
    {"faults.tamper_local_plan",
     "ranks of the host backend share one plan; tests/exec/mpi_test.py has it on mpi"},
    {"faults.perturb", kFaults},
};

std::vector<std::string> features(const Scenario& scenario) {
  std::vector<std::string> all;
  if (!scenario.verify.empty()) all.push_back("verify." + scenario.verify);
  for (const std::string& key : scenario.exec_keys) all.push_back("exec." + key);
  for (const std::string& key : scenario.expect_keys) all.push_back("expect." + key);
  for (const std::string& kind : scenario.fault_kinds) all.push_back("faults." + kind);
  for (const ScenarioTensor& tensor : scenario.tensors) {
    if (!tensor.src.dtype.empty()) all.push_back("src.dtype");
    if (!tensor.dst.dtype.empty()) all.push_back("dst.dtype");
  }
  std::sort(all.begin(), all.end());
  all.erase(std::unique(all.begin(), all.end()), all.end());
  return all;
}

}  // namespace

std::vector<Waiting> waiting_for(const Scenario& scenario) {
  std::vector<Waiting> waiting;
  for (const std::string& feature : features(scenario)) {
    if (std::find(std::begin(kExercised), std::end(kExercised), feature) != std::end(kExercised)) {
      continue;
    }
    const auto known = std::find_if(std::begin(kWaiting), std::end(kWaiting),
                                    [&](const Reason& r) { return r.feature == feature; });
    if (known == std::end(kWaiting)) {
      fail("scenario " + scenario.id, feature,
           "a feature that tests/scenarios/waiting.cc classifies");
    }
    waiting.push_back({feature, std::string(known->reason)});
  }
  return waiting;
}

bool must_be_refused(const Scenario& scenario) {
  return !scenario.error_words.empty() && scenario.fault_kinds.empty();
}

}  // namespace refit::scenarios
