// refit doctor: what this machine can do for plans and their replay, and what brings the rest.

#include <dlfcn.h>
#include <fmt/core.h>
#include <unistd.h>

#include <nlohmann/json.hpp>
#include <thread>

#include "base/file.h"
#include "base/units.h"
#include "sim/cli/commands.h"
#include "sim/cli/print.h"

namespace refit::cli {
namespace {

using Json = nlohmann::ordered_json;

struct Finding {
  std::string what;
  std::string found;  // "": not there
  std::string use;    // what it is good for
  std::string bring;  // how to get it, where it is missing
};

/// What `ask` makes of a library that the dynamic linker finds, or "".
template <typename Ask>
std::string ask_library(const char* name, Ask ask) {
  void* library = ::dlopen(name, RTLD_LAZY | RTLD_LOCAL);
  if (library == nullptr) return "";
  std::string answer = ask(library);
  ::dlclose(library);
  return answer;
}

template <typename Function>
Function* symbol(void* library, const char* name) {
  return reinterpret_cast<Function*>(::dlsym(library, name));
}

/// "2.28.3" of NCCL's 22803 (nccl.h, NCCL_VERSION).
std::string nccl_version(void* library) {
  auto* version = symbol<int(int*)>(library, "ncclGetVersion");
  int code = 0;
  if (version == nullptr || version(&code) != 0) return "of an unknown version";
  const int major = code / (code < 10000 ? 1000 : 10000);
  const int rest = code % (code < 10000 ? 1000 : 10000);
  return fmt::format("{}.{}.{}", major, rest / 100, rest % 100);
}

std::string cuda_devices(void* library) {
  auto* init = symbol<int(unsigned)>(library, "cuInit");
  auto* count = symbol<int(int*)>(library, "cuDeviceGetCount");
  int devices = 0;
  if (init == nullptr || count == nullptr || init(0) != 0 || count(&devices) != 0 || devices == 0)
    return "";
  return fmt::format("{} GPU{}", devices, devices == 1 ? "" : "s");
}

std::string namespaces() {
  if (::geteuid() != 0 || find_program("ip").empty() || find_program("tc").empty()) return "";
  return "root, ip and tc";
}

std::vector<Finding> examine() {
  const auto memory =
      static_cast<double>(::sysconf(_SC_PHYS_PAGES)) * static_cast<double>(::sysconf(_SC_PAGESIZE));
  return {
      {"host",
       fmt::format("{} cores, {}", std::thread::hardware_concurrency(), print_bytes(memory)),
       "planning; refit-exec --backend host", ""},
      {"models", list_data_files("models"), "--model NAME", "the models/ folder, or REFIT_DATA"},
      {"fabrics", list_data_files("topologies"), "--fabric NAME",
       "the topologies/ folder, or REFIT_DATA"},
      {"MPI", find_program("mpirun"), "refit-exec --backend mpi",
       "Debian: openmpi-bin libopenmpi-dev"},
      {"GPU driver", ask_library("libcuda.so.1", cuda_devices), "refit-exec --backend nccl",
       "an NVIDIA GPU and its driver"},
      {"NCCL", ask_library("libnccl.so.2", nccl_version), "refit-exec --backend nccl",
       "NVIDIA's repository: libnccl2 libnccl-dev"},
      {"CUDA compiler", find_program("nvcc"), "building the GPU parts",
       "NVIDIA's repository: cuda-nvcc"},
      {"namespaces", namespaces(), "./dev emulated", "root, and Debian: iproute2"},
      {"Graphviz", find_program("dot"), "pictures of fabrics", "Debian: graphviz"},
  };
}

}  // namespace

int run_doctor(const Common& common) {
  const std::vector<Finding> findings = examine();
  if (common.json) {
    Json list = Json::array();
    for (const Finding& finding : findings) {
      list.push_back({{"what", finding.what},
                      {"found", finding.found.empty() ? Json() : Json(finding.found)},
                      {"use", finding.use},
                      {"bring", finding.bring}});
    }
    fmt::print("{}\n", Json{{"version", REFIT_VERSION}, {"findings", list}}.dump(2));
    return 0;
  }
  fmt::print("refit {}\n", REFIT_VERSION);
  for (const Finding& finding : findings) {
    const bool there = !finding.found.empty();
    print_text(fmt::format("  {} {:<14} {}\n", there ? "+" : "-", finding.what,
                           there ? finding.found : "missing; " + finding.bring));
    print_text(fmt::format("    {:<14} for {}\n", "", finding.use));
  }
  return 0;
}

}  // namespace refit::cli
