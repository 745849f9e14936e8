#pragma once

#include <nccl.h>

#include <string>

namespace refit {

/// The functions of libnccl that are used, found at run time: so that a program with the nccl
/// backend starts where there is no NCCL, uses the copy that a framework has already loaded, and
/// finds out what that copy can do. Those after the blank line may be null.
struct NcclLibrary {
  decltype(&::ncclGetVersion) ncclGetVersion = nullptr;
  decltype(&::ncclGetErrorString) ncclGetErrorString = nullptr;
  decltype(&::ncclGetLastError) ncclGetLastError = nullptr;
  decltype(&::ncclGetUniqueId) ncclGetUniqueId = nullptr;
  decltype(&::ncclCommInitRankConfig) ncclCommInitRankConfig = nullptr;
  decltype(&::ncclCommSplit) ncclCommSplit = nullptr;
  decltype(&::ncclCommGetAsyncError) ncclCommGetAsyncError = nullptr;
  decltype(&::ncclCommCount) ncclCommCount = nullptr;
  decltype(&::ncclCommUserRank) ncclCommUserRank = nullptr;
  decltype(&::ncclCommFinalize) ncclCommFinalize = nullptr;
  decltype(&::ncclCommDestroy) ncclCommDestroy = nullptr;
  decltype(&::ncclCommAbort) ncclCommAbort = nullptr;
  decltype(&::ncclGroupStart) ncclGroupStart = nullptr;
  decltype(&::ncclGroupEnd) ncclGroupEnd = nullptr;
  decltype(&::ncclSend) ncclSend = nullptr;
  decltype(&::ncclRecv) ncclRecv = nullptr;
  decltype(&::ncclAllGather) ncclAllGather = nullptr;

  decltype(&::ncclCommRegister) ncclCommRegister = nullptr;
  decltype(&::ncclCommDeregister) ncclCommDeregister = nullptr;

  int version = 0;  // as ncclGetVersion: 22809
};

/// Opens libnccl.so.2 ($REFIT_NCCL_LIBRARY: another file), once. Throws Error (kInput) that says
/// what is missing: the library, a function, or that it is older than 2.19.
const NcclLibrary& nccl_library();

/// "2.28.9".
std::string print_nccl_version(int version);

}  // namespace refit
