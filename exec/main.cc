// refit-exec: replays a saved plan and says what it took.

#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <exception>
#include <nlohmann/json.hpp>
#include <string>

#include "base/console.h"
#include "base/error.h"
#include "base/file.h"
#include "base/units.h"
#include "base/usage.h"
#include "exec/host_replay.h"
#include "exec/machine.h"
#include "plans/check.h"
#include "plans/plan_io.h"

namespace refit {

namespace {

struct Options {
  std::string plan;
  std::string backend = "host";
  bool verify = false;
  int32_t iterations = 3;
  std::string json;
  std::string timeout = "30s";
  std::string rank_map;
};

struct Outcome {
  LoadedPlan loaded;
  ReplayReport report;
  double memcpy_rate = 0;  // bytes/s
  int cores = 0;

  double rate() const { return static_cast<double>(report.bytes_moved()) / report.median_s(); }
};

/// Exit 1 with all faults on stderr, or nothing.
void refuse_faulty(const Plan& plan, const std::string& path) {
  const std::vector<Fault> faults = check(plan);
  if (faults.empty()) return;
  for (const Fault& fault : faults) fmt::print(stderr, "{}\n", print_fault(fault));
  throw Error(fmt::format("{}: the plan is wrong, nothing was moved", path), ErrorKind::kWork);
}

std::string bytes_text(int64_t bytes) { return print_bytes(static_cast<double>(bytes)); }

std::string report_text(const Options& options, const Outcome& outcome) {
  const Plan& plan = outcome.loaded.plan;
  const ReplayReport& report = outcome.report;
  const PlanTotals totals = plan_totals(plan);
  const auto [fastest, slowest] = std::minmax_element(report.seconds.begin(), report.seconds.end());
  std::string text;
  text += fmt::format("plan       {}, {} ranks, strategy {}\n",
                      outcome.loaded.saved.digest.substr(0, 12), plan.ranks.size(), plan.strategy);
  text += fmt::format("moves      {} in {} transfers, {} in {} local copies\n",
                      bytes_text(report.bytes_wire), totals.transfers,
                      bytes_text(report.bytes_copied), totals.copies);
  text += fmt::format("memory     {} of buffers, {} of staging\n", bytes_text(report.buffer_bytes),
                      bytes_text(report.staging_bytes));
  text +=
      fmt::format("refit      min {}, median {}, max {} over {} iterations\n", print_time(*fastest),
                  print_time(report.median_s()), print_time(*slowest), report.seconds.size());
  text += fmt::format("rate       {} moved; memcpy on {} cores here: {}; ratio {:.2f}\n",
                      print_rate(outcome.rate()), outcome.cores, print_rate(outcome.memcpy_rate),
                      outcome.rate() / outcome.memcpy_rate);
  text += fmt::format("predicted  {} on the plan's fabric, which is not this host\n",
                      print_time(plan.prediction.predicted_s));
  if (options.verify) {
    text += fmt::format("verified   {} bytes on {} ranks, every byte equal\n",
                        report.verified_bytes, report.verified_ranks);
  }
  return text;
}

std::string report_json(const Options& options, const Outcome& outcome) {
  using Json = nlohmann::ordered_json;
  const ReplayReport& report = outcome.report;
  Json json;
  json["context"] = {{"version", REFIT_VERSION},
                     {"backend", options.backend},
                     {"cores", outcome.cores},
                     {"build_type", REFIT_BUILD_TYPE}};
  json["digest"] = outcome.loaded.saved.digest;
  json["iterations"] = report.seconds;
  json["median_s"] = report.median_s();
  json["bytes_moved"] = report.bytes_moved();
  json["bytes_per_second"] = outcome.rate();
  json["memcpy_bytes_per_second"] = outcome.memcpy_rate;
  json["verified"] = options.verify;
  json["predicted_s"] = outcome.loaded.plan.prediction.predicted_s;
  json["ranks"] = Json::array();
  for (const RankReport& rank : report.ranks) {
    json["ranks"].push_back({{"rank", rank.rank},
                             {"seconds", rank.seconds},
                             {"bytes_received", rank.bytes_received},
                             {"bytes_copied", rank.bytes_copied},
                             {"staging_bytes", rank.staging_bytes}});
  }
  return json.dump(1) + "\n";
}

void replay(const Options& options) {
  if (options.backend != "host") {
    if (options.backend == "mpi" || options.backend == "nccl") {
      fail("--backend", fmt::format("this build has no {} backend; it has: host", options.backend));
    }
    fail("--backend", options.backend, "host, mpi or nccl; this build has: host");
  }
  if (!options.rank_map.empty()) {
    fail("--rank-map", options.rank_map,
         "nothing: on the host backend rank r of the plan is thread r");
  }
  ReplayOptions how;
  how.iterations = options.iterations;
  how.verify = options.verify;
  how.timeout_s = parse_time(options.timeout, "--timeout");
  if (how.timeout_s <= 0 || how.timeout_s > 86400) {
    fail("--timeout", options.timeout, "more than nothing, at most a day (86400s)");
  }
  if (isatty(STDERR_FILENO) != 0) {
    how.progress = [&](int32_t iteration) {
      fmt::print(stderr, "\riteration {} of {}{}", iteration + 1, options.iterations,
                 iteration + 1 == options.iterations ? "\n" : "");
    };
  }

  Outcome outcome;
  outcome.loaded = load_plan(options.plan);
  refuse_faulty(outcome.loaded.plan, options.plan);
  outcome.cores = core_count();
  outcome.memcpy_rate = measure_memcpy(outcome.cores);  // before the buffers take the memory
  outcome.report = replay_on_host(outcome.loaded.plan, how);

  const bool json_to_stdout = options.json == "-";
  fmt::print(json_to_stdout ? stderr : stdout, "{}", report_text(options, outcome));
  if (json_to_stdout) {
    fmt::print("{}", report_json(options, outcome));
  } else if (!options.json.empty()) {
    write_file(options.json, report_json(options, outcome));
  }
}

int main_guarded(int argc, char** argv) {
  Options options;
  CLI::App app("Replays a saved plan on this host or cluster and measures it.", "refit-exec");
  app.set_version_flag("--version", std::string("refit-exec ") + REFIT_VERSION);
  app.option_defaults()->always_capture_default();
  app.add_option("PLAN", options.plan, "Plan file, as `refit plan -o` writes it")->required();
  app.add_option("--backend", options.backend, "host (all ranks are threads here), mpi or nccl");
  app.add_flag("--verify", options.verify,
               "Send known values, compare every byte on every destination");
  app.add_option("--iterations", options.iterations, "How many refits to run")
      ->check(CLI::Range(1, 1000000));
  app.add_option("--json", options.json, "Also write the figures as JSON; - is stdout")
      ->option_text("FILE");
  app.add_option("--timeout", options.timeout, "Give up when nothing moves for so long");
  app.add_option("--rank-map", options.rank_map,
                 "Process rank of each rank of the plan (mpi, nccl)")
      ->option_text("FILE");
  app.footer(
      "Exit status: 0 every rank finished (and every byte is right), 1 the refit failed, 2 bad "
      "usage\n"
      "or input.\n\nExample:\n  refit-exec moe.plan --verify --iterations 5 --json moe.json");
  add_usage_options(app, {{"--backend", "host mpi nccl"}}, REFIT_VERSION);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help, --version
    log_line(std::string("refit-exec: ") + error.what() + " (see refit-exec --help)");
    return 2;
  }
  replay(options);
  return 0;
}

}  // namespace

}  // namespace refit

int main(int argc, char** argv) {
  try {
    const int code = refit::main_guarded(argc, argv);
    refit::finish_output();
    return code;
  } catch (const refit::Error& error) {
    refit::log_line(std::string("refit-exec: ") + error.what());
    return error.kind() == refit::ErrorKind::kInput ? 2 : 1;
  } catch (const std::exception& error) {
    refit::log_line(std::string("refit-exec: ") + error.what());
    return 1;
  }
}
