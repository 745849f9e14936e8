#include "exec/cuda/nccl_library.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <cstdlib>

#include "base/error.h"

namespace refit {

namespace {

constexpr int kOldestNccl = NCCL_VERSION(2, 19, 0);

NcclLibrary open_library() {
  const char* named = std::getenv("REFIT_NCCL_LIBRARY");
  const std::string file = named == nullptr ? "libnccl.so.2" : named;
  void* handle = dlopen(file.c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (handle == nullptr) {
    const char* reason = dlerror();
    fail("backend nccl", reason == nullptr ? "no " + file : reason,
         "NCCL 2.19 or later (REFIT_NCCL_LIBRARY names its file)");
  }
  NcclLibrary library;
  const auto find = [&](auto& function, const char* name, bool needed) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(handle, name));
    if (function == nullptr && needed) {
      fail("backend nccl", fmt::format("{} without {}", file, name), "NCCL 2.19 or later");
    }
  };
#define REFIT_FIND(name) find(library.name, #name, true)
  REFIT_FIND(ncclGetVersion);
  REFIT_FIND(ncclGetErrorString);
  REFIT_FIND(ncclGetLastError);
  REFIT_FIND(ncclGetUniqueId);
  REFIT_FIND(ncclCommInitRankConfig);
  REFIT_FIND(ncclCommSplit);
  REFIT_FIND(ncclCommGetAsyncError);
  REFIT_FIND(ncclCommCount);
  REFIT_FIND(ncclCommUserRank);
  REFIT_FIND(ncclCommFinalize);
  REFIT_FIND(ncclCommDestroy);
  REFIT_FIND(ncclCommAbort);
  REFIT_FIND(ncclGroupStart);
  REFIT_FIND(ncclGroupEnd);
  REFIT_FIND(ncclSend);
  REFIT_FIND(ncclRecv);
  REFIT_FIND(ncclAllGather);
#undef REFIT_FIND
  find(library.ncclCommRegister, "ncclCommRegister", false);
  find(library.ncclCommDeregister, "ncclCommDeregister", false);
  library.ncclGetVersion(&library.version);
  if (library.version < kOldestNccl) {
    fail("backend nccl", fmt::format("{} of version {}", file, print_nccl_version(library.version)),
         "NCCL 2.19 or later");
  }
  return library;
}

}  // namespace

const NcclLibrary& nccl_library() {
  static const NcclLibrary library = open_library();
  return library;
}

std::string print_nccl_version(int version) {
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

}  // namespace refit
