// refit-exec: replays a saved plan and says what it took.

#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "base/console.h"
#include "base/error.h"
#include "base/file.h"
#include "base/units.h"
#include "base/usage.h"
#include "exec/host_replay.h"
#include "exec/machine.h"
#include "exec/placement.h"
#include "exec/report.h"
#include "plans/plan_io.h"
#ifdef REFIT_HAVE_MPI
#include "exec/mpi_bootstrap.h"
#include "exec/mpi_replay.h"
#endif
#ifdef REFIT_HAVE_NCCL
#include "exec/cuda/cuda_gpu.h"
#include "exec/nccl_replay.h"
#endif

namespace refit {

namespace {

#ifdef REFIT_HAVE_MPI
constexpr bool kHaveMpi = true;
#else
constexpr bool kHaveMpi = false;
#endif
#ifdef REFIT_HAVE_NCCL
constexpr bool kHaveNccl = true;
#else
constexpr bool kHaveNccl = false;
#endif

std::string list_backends() {
  return std::string("host") + (kHaveMpi ? ", mpi" : "") + (kHaveNccl ? ", nccl" : "");
}

struct Options {
  std::string plan;
  std::string backend = "host";
  bool verify = false;
  int32_t iterations = 3;
  std::string json;
  std::string timeout = "30s";
  std::string rank_map;
};

bool is_terminal() { return isatty(STDERR_FILENO) != 0; }

#ifdef REFIT_HAVE_NCCL
/// By MPI where REFIT_BOOTSTRAP says so, else as the environment of the launcher has it.
std::unique_ptr<Bootstrap> meet(const std::vector<int32_t>& process_of, double timeout_s,
                                int32_t* device) {
  const char* way = std::getenv("REFIT_BOOTSTRAP");
  if (way != nullptr && std::string(way) == "mpi") {
#ifdef REFIT_HAVE_MPI
    MpiMeeting meeting = meet_by_mpi(process_of, std::max(timeout_s, 60.0));
    *device = meeting.local_rank;
    return std::move(meeting.bootstrap);
#else
    fail("REFIT_BOOTSTRAP", "mpi", "another way: this build has no MPI");
#endif
  }
  BootstrapOptions options = read_bootstrap_environment(&std::getenv);
  options.timeout_s = std::max(timeout_s, 60.0);
  *device = options.local_rank;
  if (!process_of.empty()) map_ranks(options, process_of);
  return make_bootstrap(options);
}
#endif

std::optional<Outcome> replay_on(const Options& options, const ReplayOptions& how) {
  if (options.backend == "host") {
    Outcome outcome;
    outcome.loaded = load_plan(options.plan);
    refuse_faulty(outcome.loaded.plan, options.plan);
    outcome.memcpy_rate = measure_memcpy(core_count());  // before the buffers take the memory
    outcome.report = replay_on_host(outcome.loaded.plan, how);
    return outcome;
  }
  [[maybe_unused]] std::vector<int32_t> rank_map;
  if (!options.rank_map.empty()) rank_map = load_rank_map(options.rank_map);
#ifdef REFIT_HAVE_MPI
  if (options.backend == "mpi") {
    return replay_on_mpi(options.plan, rank_map, how);
  }
#endif
#ifdef REFIT_HAVE_NCCL
  if (options.backend == "nccl") {
    const int32_t devices = count_cuda_devices();  // before anyone is waited for
    int32_t device = 0;
    const std::unique_ptr<Bootstrap> bootstrap = meet(rank_map, how.timeout_s, &device);
    // Where a launcher shows each process only its own GPU, that is device 0.
    const std::unique_ptr<GpuApi> gpu = make_cuda_gpu(devices == 1 ? 0 : device);
    NcclOptions nccl;
    nccl.timeout_s = how.timeout_s;
    std::optional<NcclOutcome> done = replay_on_nccl(options.plan, *gpu, *bootstrap, how, nccl);
    if (!done) return {};
    log_line("refit-exec: " + done->device);
    return std::move(*done);
  }
#endif
  return {};
}

void replay(const Options& options) {
  if ((options.backend == "nccl" && !kHaveNccl) || (options.backend == "mpi" && !kHaveMpi)) {
    fail("--backend",
         fmt::format("this build has no {} backend; it has: {}", options.backend, list_backends()));
  }
  if (options.backend != "host" && options.backend != "mpi" && options.backend != "nccl") {
    fail("--backend", options.backend,
         fmt::format("host, mpi or nccl; this build has: {}", list_backends()));
  }
  if (options.backend == "host" && !options.rank_map.empty()) {
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
  if (is_terminal()) {
    how.progress = [&](int32_t iteration) {
      fmt::print(stderr, "\riteration {} of {}{}", iteration + 1, options.iterations,
                 iteration + 1 == options.iterations ? "\n" : "");
    };
  }

  std::optional<Outcome> outcome = replay_on(options, how);
  if (!outcome) return;  // rank 0 speaks for all
  outcome->backend = options.backend;
  outcome->verified = options.verify;
  outcome->cores = core_count();
  const bool json_to_stdout = options.json == "-";
  fmt::print(json_to_stdout ? stderr : stdout, "{}", report_text(*outcome));
  if (options.json.empty()) return;
  const std::string json = report_json(*outcome, REFIT_BUILD_TYPE);
  if (json_to_stdout) {
    fmt::print("{}", json);
  } else {
    write_file(options.json, json);
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
                 "File: the process of each rank of the plan (mpi, nccl)")
      ->option_text("FILE");
  app.footer(
      "Exit status: 0 every rank finished (and every byte is right), 1 the refit failed, 2 bad "
      "usage\n"
      "or input.\n\nExample:\n  refit-exec moe.plan --verify --iterations 5 --json moe.json");
  add_usage_options(app, {{"--backend", "host mpi nccl"}}, REFIT_VERSION);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) {  // --help, --version
      std::ostringstream text;
      app.exit(error, text, text);
      fmt::print("{}", fit_columns(text.str()));
      return 0;
    }
    log_line(std::string("refit-exec: ") + error.what() + " (see refit-exec --help)");
    return 2;
  }
  replay(options);
  return 0;
}

}  // namespace

}  // namespace refit

int main(int argc, char** argv) {
  int code = 1;
  try {
    code = refit::main_guarded(argc, argv);
    refit::finish_output();
    return code;
  } catch (const refit::Error& error) {
    refit::log_line(std::string("refit-exec: ") + error.what());
    code = error.kind() == refit::ErrorKind::kInput ? 2 : 1;
  } catch (const std::exception& error) {
    refit::log_line(std::string("refit-exec: ") + error.what());
  }
  std::fflush(stdout);
  std::_Exit(code);  // exit handlers of a transport may wait for ranks that are gone
}
