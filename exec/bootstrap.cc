#include "exec/bootstrap.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <limits>

#include "base/error.h"
#include "exec/placement.h"

namespace refit {

namespace {

using Variable = std::function<const char*(const char*)>;

std::string read(const Variable& variable, const char* name) {
  const char* text = variable(name);
  return text == nullptr ? "" : text;
}

int32_t read_number(const Variable& variable, const char* name, int32_t least, int32_t most) {
  const std::string text = read(variable, name);
  int32_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc() || end != text.data() + text.size() || value < least ||
      value > most) {
    fail(name, text.empty() ? "nothing" : quote(text), fmt::format("{}..{}", least, most));
  }
  return value;
}

/// The variables of a launcher.
struct Launcher {
  const char* rank;
  const char* world;
  const char* local_rank;
};
constexpr std::array<Launcher, 4> kLaunchers = {{
    {"REFIT_RANK", "REFIT_WORLD_SIZE", "REFIT_LOCAL_RANK"},
    {"RANK", "WORLD_SIZE", "LOCAL_RANK"},
    {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"},
    {"SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"},
}};

constexpr int32_t kMostRanks = 1 << 20;
constexpr size_t kLeastToken = 16;

}  // namespace

BootstrapOptions read_bootstrap_environment(const Variable& variable) {
  BootstrapOptions options;
  for (const Launcher& launcher : kLaunchers) {
    if (variable(launcher.rank) == nullptr && variable(launcher.world) == nullptr) continue;
    options.world = read_number(variable, launcher.world, 1, kMostRanks);
    options.rank = read_number(variable, launcher.rank, 0, options.world - 1);
    if (variable(launcher.local_rank) != nullptr) {
      options.local_rank = read_number(variable, launcher.local_rank, 0, options.world - 1);
    }
    break;
  }
  if (options.world == 0) {
    fail("environment", "no rank of this process",
         "REFIT_RANK and REFIT_WORLD_SIZE, or a launcher that sets its own (torchrun, mpirun, "
         "srun)");
  }
  options.folder = read(variable, "REFIT_BOOTSTRAP_DIR");
  options.token = read(variable, "REFIT_JOB_TOKEN");
  if (options.token.size() < kLeastToken) {
    fail("REFIT_JOB_TOKEN", fmt::format("{} characters", options.token.size()),
         fmt::format("at least {}, the same on all ranks, such as of `openssl rand -hex 16`",
                     kLeastToken));
  }
  if (!options.folder.empty()) return options;

  options.address = read(variable, "REFIT_MASTER_ADDR");
  if (options.address.empty()) options.address = read(variable, "MASTER_ADDR");
  if (options.address.empty()) {
    fail("REFIT_MASTER_ADDR", "nothing", "the host of rank 0 (or REFIT_BOOTSTRAP_DIR)");
  }
  constexpr int32_t kMostPort = std::numeric_limits<uint16_t>::max();
  options.port = variable("REFIT_MASTER_PORT") != nullptr
                     ? read_number(variable, "REFIT_MASTER_PORT", 1, kMostPort)
                     : read_number(variable, "MASTER_PORT", 1, kMostPort - 1) + 1;
  options.bind_address = read(variable, "REFIT_BIND_ADDR");
  return options;
}

void map_ranks(BootstrapOptions& options, const std::vector<int32_t>& process_of) {
  const std::vector<int32_t> rank_of = invert_rank_map(process_of, options.world);
  options.root = rank_of[static_cast<size_t>(options.root)];
  options.rank = rank_of[static_cast<size_t>(options.rank)];
}

std::unique_ptr<Bootstrap> make_bootstrap(const BootstrapOptions& options) {
  return options.folder.empty() ? make_tcp_bootstrap(options) : make_file_bootstrap(options);
}

}  // namespace refit
