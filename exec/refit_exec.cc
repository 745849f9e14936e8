#include "exec/refit_exec.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "exec/binding.h"
#include "exec/clock.h"
#include "exec/executor.h"
#include "exec/host_backend.h"
#include "plans/plan_io.h"
#ifdef REFIT_HAVE_MPI
#include "exec/mpi_backend.h"
#endif
#ifdef REFIT_HAVE_NCCL
#include "exec/cuda/cuda_gpu.h"
#include "exec/nccl_backend.h"
#endif

static_assert(REFIT_MAX_DIMS == refit::kMaxDims);

namespace {

using refit::Error;
using refit::ErrorKind;
using refit::fail;

thread_local std::string last_error;

/// Every function is one call of this.
template <typename Body>
refit_status guard(const Body& body) {
  try {
    body();
    return REFIT_OK;
  } catch (const Error& error) {
    last_error = error.what();
    return error.kind() == ErrorKind::kInput ? REFIT_BAD_INPUT : REFIT_FAILED;
  } catch (const std::exception& error) {
    last_error = error.what();
    return REFIT_FAILED;
  }
}

void need_address(const void* pointer, const char* what) {
  if (pointer == nullptr) fail(what, "null", "an address");
}

template <typename T>
T& need(T* pointer, const char* what) {
  need_address(pointer, what);
  return *pointer;
}

/// A struct of the caller, who may have been compiled with an older or newer header.
template <typename T>
T read_struct(const T* from, const char* what) {
  T value{};
  if (need(from, what).size < sizeof from->size) {
    fail(what, fmt::format("size {}", from->size), fmt::format("{}", sizeof(T)));
  }
  std::memcpy(&value, from, std::min(from->size, sizeof(T)));
  return value;
}

template <typename T>
void write_struct(T value, T* to, const char* what) {
  const size_t size = need(to, what).size;
  if (size < sizeof to->size) {
    fail(what, fmt::format("size {}", size), fmt::format("{}", sizeof(T)));
  }
  value.size = size;
  std::memcpy(to, &value, std::min(size, sizeof(T)));
}

refit::Side to_side(refit_side side) {
  if (side != REFIT_TRAIN && side != REFIT_GEN) {
    fail("side", std::to_string(static_cast<int>(side)), "REFIT_TRAIN or REFIT_GEN");
  }
  return side == REFIT_TRAIN ? refit::Side::kTrain : refit::Side::kGen;
}

}  // namespace

struct refit_plan {
  std::shared_ptr<const refit::LoadedPlan> loaded;
  int32_t rank = -1;

  const refit::PlanTensor& tensor(int32_t index) const {
    const auto& tensors = loaded->plan.tensors;
    if (index < 0 || index >= std::ssize(tensors)) {
      fail("tensor", std::to_string(index), fmt::format("0..{}", std::ssize(tensors) - 1));
    }
    return tensors[static_cast<size_t>(index)];
  }
  const std::vector<refit::Shard>& shards(int32_t index, refit::Side side) const {
    static const std::vector<refit::Shard> kNone;
    const refit::PlanTensor& entry = tensor(index);
    const int32_t map = side == refit::Side::kTrain ? entry.train_map : entry.gen_map;
    if (map < 0) return kNone;
    const auto* found = loaded->plan.maps[static_cast<size_t>(map)].find(rank);
    return found == nullptr ? kNone : *found;
  }
};

/// Shared with the executors, so that it may be closed before them.
struct refit_host_world {
  struct Shared {
    Shared(int32_t ranks, double timeout_s) : world(ranks, timeout_s) {}
    refit::HostWorld world;
    std::mutex mutex;
    std::set<int32_t> taken;
    std::string digest;
  };
  std::shared_ptr<Shared> shared;
};

struct refit_executor {
  std::mutex mutex;
  std::shared_ptr<const refit::LoadedPlan> loaded;
  int32_t rank = -1;
  refit_options options{};
  refit::Plan plan;  // with this rank's bindings
  refit::Bindings bindings;
  std::set<int32_t> frozen;
  refit::Weights weights;
  refit::ReplayTimes times;
  int64_t runs = 0;
  double setup_s = 0;
  std::string failure;

  // The transport, in the order in which it may be taken down.
  std::shared_ptr<refit_host_world::Shared> host;
#ifdef REFIT_HAVE_MPI
  std::unique_ptr<refit::MpiWorld> mpi;
#endif
#ifdef REFIT_HAVE_NCCL
  std::unique_ptr<refit::GpuApi> gpu;
  std::unique_ptr<refit::NcclBackend> nccl;
#endif
  refit::Backend* backend = nullptr;
  refit::Executor::Buffers buffers;
  std::unique_ptr<refit::Executor> executor;

  void refuse_prepared() const {
    if (executor != nullptr) fail("executor", "one that is prepared", "bindings before");
  }
  void need_prepared() const {
    if (!failure.empty()) throw Error(failure, ErrorKind::kWork);
    if (executor == nullptr) fail("executor", "one that is not prepared", "refit_executor_prepare");
  }

  refit::Hooks make_hooks() const;
  void compare_digests();
  void prepare();
};

namespace {

double timeout_of(const refit_options& options) {
  return options.timeout_s > 0 ? options.timeout_s : 30;
}

std::unique_ptr<refit_executor> make_executor(const refit_plan* plan,
                                              const refit_options* options) {
  auto executor = std::make_unique<refit_executor>();
  executor->loaded = need(plan, "plan").loaded;
  executor->rank = plan->rank;
  if (options != nullptr) executor->options = read_struct(options, "options");
  return executor;
}

[[maybe_unused]] void compare_place(const refit_executor& executor, int32_t rank, int32_t world) {
  const auto ranks = static_cast<int32_t>(executor.loaded->plan.ranks.size());
  if (world != ranks) {
    fail("communicator", fmt::format("{} ranks", world), fmt::format("the plan's {}", ranks));
  }
  if (rank != executor.rank) {
    fail("communicator", fmt::format("rank {}", rank),
         fmt::format("rank {}, for which the plan was opened", executor.rank));
  }
}

}  // namespace

refit::Hooks refit_executor::make_hooks() const {
  const refit_hooks& calls = options.hooks;
  refit::Hooks hooks;
  const auto check = [](const char* name, int result) {
    if (result == 0) return;
    throw Error(fmt::format("hook {} returned {}", name, result), ErrorKind::kWork);
  };
  if (calls.before_write != nullptr) {
    hooks.before_write = [=] { check("before_write", calls.before_write(calls.user)); };
  }
  if (calls.finalize != nullptr) {
    hooks.finalize = [=](std::span<const int32_t> tensors) {
      check("finalize",
            calls.finalize(calls.user, tensors.data(), static_cast<int32_t>(tensors.size())));
    };
  }
  if (calls.after_commit != nullptr) {
    hooks.after_commit = [=](int64_t version) { calls.after_commit(calls.user, version); };
  }
  return hooks;
}

void refit_executor::compare_digests() {
  const std::string& digest = loaded->saved.digest;
  const auto compare = [&](const std::string& first, const std::string& other, int32_t of) {
    if (first == other) return;
    fail(fmt::format("digest of rank {}", of), other, fmt::format("{} as on other ranks", first));
  };
  if (host != nullptr) {
    const std::lock_guard lock(host->mutex);
    if (host->digest.empty()) host->digest = digest;
    compare(host->digest, digest, rank);
  }
#ifdef REFIT_HAVE_MPI
  if (mpi != nullptr) {
    const std::vector<std::string> digests = mpi->control().gather(digest);
    for (size_t r = 0; r < digests.size(); ++r) {
      compare(digests[0], digests[r], static_cast<int32_t>(r));
    }
    mpi->control().barrier();
  }
#endif
#ifdef REFIT_HAVE_NCCL
  if (nccl != nullptr) {
    const std::vector<std::string> digests = nccl->all_gather(digest);
    for (size_t r = 0; r < digests.size(); ++r) {
      compare(digests[0], digests[r], static_cast<int32_t>(r));
    }
  }
#endif
}

void refit_executor::prepare() {
  refuse_prepared();
  if (!failure.empty()) throw Error(failure, ErrorKind::kWork);
  try {
    const refit::Clock::time_point start = refit::Clock::now();
    compare_digests();
    plan = loaded->plan;
    for (const int32_t tensor : frozen) {
      std::erase_if(bindings.train, [&](const auto& entry) { return entry.first.first == tensor; });
      std::erase_if(bindings.gen, [&](const auto& entry) { return entry.first.first == tensor; });
    }
    refit::freeze_tensors(plan, rank, std::vector<int32_t>(frozen.begin(), frozen.end()));
    buffers = refit::apply_bindings(plan, *backend, bindings);
    executor = std::make_unique<refit::Executor>(plan, *backend, buffers, make_hooks(), &weights);
    setup_s = refit::seconds_since(start);
  } catch (const std::exception& error) {
    failure = error.what();
    backend->abort(failure);
    throw;
  }
}

const char* refit_version(void) { return REFIT_VERSION; }

const char* refit_last_error(void) { return last_error.c_str(); }

// The plan

refit_status refit_plan_open(const char* path, int32_t rank, refit_plan** plan) {
  return guard([&] {
    need(path, "path");
    auto made = std::make_unique<refit_plan>();
    made->loaded = std::make_shared<const refit::LoadedPlan>(refit::load_plan_for_rank(path, rank));
    made->rank = rank;
    need(plan, "plan") = made.release();
  });
}

void refit_plan_close(refit_plan* plan) { delete plan; }

refit_status refit_plan_describe(const refit_plan* plan, refit_plan_info* info) {
  return guard([&] {
    const refit::LoadedPlan& loaded = *need(plan, "plan").loaded;
    refit_plan_info out{};
    out.rank = plan->rank;
    out.ranks = static_cast<int32_t>(loaded.plan.ranks.size());
    out.tensors = static_cast<int32_t>(loaded.plan.tensors.size());
    out.predicted_s = loaded.plan.prediction.predicted_s;
    out.digest = loaded.saved.digest.c_str();
    out.strategy = loaded.plan.strategy.c_str();
    write_struct(out, info, "info");
  });
}

refit_status refit_plan_tensor(const refit_plan* plan, int32_t tensor, refit_tensor_info* info) {
  return guard([&] {
    const refit::PlanTensor& entry = need(plan, "plan").tensor(tensor);
    refit_tensor_info out{};
    out.name = entry.name.c_str();
    out.dtype = refit::dtype_name(entry.train_dtype).data();  // of literals, so it ends with a zero
    out.gen_dtype = refit::dtype_name(entry.gen_dtype).data();
    out.dims = entry.shape.count;
    for (int d = 0; d < out.dims; ++d) out.shape[d] = entry.shape[d];
    out.train_shards = static_cast<int32_t>(plan->shards(tensor, refit::Side::kTrain).size());
    out.gen_shards = static_cast<int32_t>(plan->shards(tensor, refit::Side::kGen).size());
    write_struct(out, info, "info");
  });
}

refit_status refit_plan_shard(const refit_plan* plan, int32_t tensor, refit_side side,
                              int32_t shard, refit_shard_info* info) {
  return guard([&] {
    const auto& shards = need(plan, "plan").shards(tensor, to_side(side));
    if (shard < 0 || shard >= std::ssize(shards)) {
      fail("shard", std::to_string(shard), fmt::format("less than {}", shards.size()));
    }
    const refit::Box& box = shards[static_cast<size_t>(shard)].box;
    refit_shard_info out{};
    for (int d = 0; d < box.dims(); ++d) {
      out.lo[d] = box.lo[d];
      out.hi[d] = box.hi[d];
    }
    write_struct(out, info, "info");
  });
}

// Executors

refit_status refit_host_world_open(int32_t ranks, double timeout_s, refit_host_world** world) {
  return guard([&] {
    if (ranks < 1 || ranks > 1 << 16) fail("ranks", std::to_string(ranks), "1..65536");
    auto made = std::make_unique<refit_host_world>();
    made->shared =
        std::make_shared<refit_host_world::Shared>(ranks, timeout_s > 0 ? timeout_s : 30);
    need(world, "world") = made.release();
  });
}

void refit_host_world_close(refit_host_world* world) { delete world; }

refit_status refit_executor_on_host(const refit_plan* plan, refit_host_world* world,
                                    const refit_options* options, refit_executor** executor) {
  return guard([&] {
    auto made = make_executor(plan, options);
    made->host = need(world, "world").shared;
    compare_place(*made, made->rank, made->host->world.ranks());
    {
      const std::lock_guard lock(made->host->mutex);
      if (!made->host->taken.insert(made->rank).second) {
        fail("world", fmt::format("a second executor of rank {}", made->rank), "one for each rank");
      }
    }
    made->backend = &made->host->world.backend(made->rank);
    need(executor, "executor") = made.release();
  });
}

#ifdef REFIT_HAVE_MPI
namespace {

refit_status make_mpi_executor(const refit_plan* plan, const refit::MpiCommunicator& communicator,
                               const refit_options* options, refit_executor** executor) {
  return guard([&] {
    auto made = make_executor(plan, options);
    made->mpi = std::make_unique<refit::MpiWorld>(communicator, timeout_of(made->options));
    compare_place(*made, made->mpi->rank(), made->mpi->world());
    made->backend =
        &made->mpi->open_backend(static_cast<int32_t>(made->loaded->plan.channels.size()));
    need(executor, "executor") = made.release();
  });
}

}  // namespace

refit_status refit_executor_on_mpi(const refit_plan* plan, const void* communicator,
                                   const refit_options* options, refit_executor** executor) {
  const auto check = guard([&] { need_address(communicator, "communicator"); });
  return check != REFIT_OK ? check : make_mpi_executor(plan, {communicator, 0}, options, executor);
}

refit_status refit_executor_on_mpi_fortran(const refit_plan* plan, int communicator,
                                           const refit_options* options,
                                           refit_executor** executor) {
  return make_mpi_executor(plan, {nullptr, communicator}, options, executor);
}
#else
refit_status refit_executor_on_mpi(const refit_plan*, const void*, const refit_options*,
                                   refit_executor**) {
  return guard([] { fail("backend mpi", "a build without it", "one with MPI"); });
}

refit_status refit_executor_on_mpi_fortran(const refit_plan*, int, const refit_options*,
                                           refit_executor**) {
  return guard([] { fail("backend mpi", "a build without it", "one with MPI"); });
}
#endif

refit_status refit_executor_on_nccl([[maybe_unused]] const refit_plan* plan,
                                    [[maybe_unused]] void* communicator,
                                    [[maybe_unused]] const refit_options* options,
                                    [[maybe_unused]] refit_executor** executor) {
  return guard([&] {
#ifdef REFIT_HAVE_NCCL
    auto made = make_executor(plan, options);
    need_address(communicator, "communicator");
    made->gpu = refit::make_cuda_gpu(refit::current_cuda_device());
    const refit::CommPlace place = refit::find_comm_place(communicator);
    compare_place(*made, place.rank, place.world);
    refit::NcclOptions nccl;
    nccl.timeout_s = timeout_of(made->options);
    nccl.graph = made->options.no_graph == 0;
    made->nccl = std::make_unique<refit::NcclBackend>(*made->gpu, made->loaded->plan, made->rank,
                                                      nullptr, communicator, nccl);
    made->backend = made->nccl.get();
    need(executor, "executor") = made.release();
#else
    fail("backend nccl", "a build without it", "one with CUDA and NCCL");
#endif
  });
}

void refit_executor_close(refit_executor* executor) {
  if (executor == nullptr) return;
  executor->executor.reset();
  if (executor->host != nullptr) {
    const std::lock_guard lock(executor->host->mutex);
    executor->host->taken.erase(executor->rank);
  }
  delete executor;
}

// Tensors

refit_status refit_executor_bind(refit_executor* executor, const refit_tensor* tensor) {
  return guard([&] {
    const refit_tensor given = read_struct(tensor, "tensor");
    const std::lock_guard lock(need(executor, "executor").mutex);
    executor->refuse_prepared();
    const refit::Plan& plan = executor->loaded->plan;
    const int32_t index = refit::find_tensor(plan, &need(given.name, "name"));
    std::span<const int64_t> strides;
    if (given.strides != nullptr) {
      strides = {given.strides,
                 static_cast<size_t>(plan.tensors[static_cast<size_t>(index)].shape.count)};
    }
    refit::add_binding(plan, executor->rank, to_side(given.side), index, given.shard,
                       static_cast<std::byte*>(given.data),
                       given.dtype == nullptr ? "" : given.dtype, strides, executor->bindings);
  });
}

refit_status refit_executor_freeze(refit_executor* executor, const char* tensor) {
  return guard([&] {
    const std::lock_guard lock(need(executor, "executor").mutex);
    executor->refuse_prepared();
    executor->frozen.insert(refit::find_tensor(executor->loaded->plan, &need(tensor, "tensor")));
  });
}

refit_status refit_executor_prepare(refit_executor* executor) {
  return guard([&] {
    const std::lock_guard lock(need(executor, "executor").mutex);
    executor->prepare();
  });
}

refit_status refit_executor_locate(refit_executor* executor, refit_side side, const char* tensor,
                                   int32_t shard, void** data, int64_t strides[REFIT_MAX_DIMS]) {
  return guard([&] {
    const std::lock_guard lock(need(executor, "executor").mutex);
    executor->need_prepared();
    const bool train = to_side(side) == refit::Side::kTrain;
    const refit::Plan& plan = executor->plan;
    const refit::PlanTensor& entry =
        plan.tensors[static_cast<size_t>(refit::find_tensor(plan, &need(tensor, "tensor")))];
    const int32_t map = train ? entry.train_map : entry.gen_map;
    const auto* shards =
        map < 0 ? nullptr : plan.maps[static_cast<size_t>(map)].find(executor->rank);
    const auto count = static_cast<int32_t>(shards == nullptr ? 0 : shards->size());
    if (shard < 0 || shard >= count) {
      fail("tensor " + entry.name, fmt::format("shard {}", shard),
           fmt::format("less than {}", count));
    }
    const refit::Shard& at = (*shards)[static_cast<size_t>(shard)];
    const auto& buffers = train ? executor->buffers.train : executor->buffers.gen;
    const int64_t bits = refit::dtype_bits(train ? entry.train_dtype : entry.gen_dtype);
    need(data, "data") =
        buffers[static_cast<size_t>(train ? entry.train_buffer : entry.gen_buffer)] +
        at.offset * bits / 8;
    if (strides == nullptr) return;
    for (int d = 0; d < at.stride.count; ++d) strides[d] = at.stride[d];
  });
}

// Refits

refit_status refit_executor_run(refit_executor* executor, int64_t version, void* stream) {
  return guard([&] {
    const std::lock_guard lock(need(executor, "executor").mutex);
    executor->need_prepared();
    if (version < 0) fail("version", std::to_string(version), "0 or more");
#ifdef REFIT_HAVE_NCCL
    if (executor->nccl != nullptr) executor->nccl->begin_after(stream);
#endif
    static_cast<void>(stream);
    try {
      executor->times = executor->executor->run(version);
      ++executor->runs;
    } catch (const std::exception& error) {
      executor->failure = error.what();
      throw;
    }
  });
}

refit_status refit_executor_state(refit_executor* executor, refit_state* state) {
  return guard([&] {
    const std::lock_guard lock(need(executor, "executor").mutex);
    refit_state out{};
    out.version = executor->weights.version;
    out.torn = executor->weights.torn ? 1 : 0;
    out.failed = executor->failure.empty() ? 0 : 1;
    out.runs = executor->runs;
    out.setup_s = executor->setup_s;
    out.refit_s = executor->times.refit_s;
    out.bytes_received = executor->times.bytes_received;
    out.bytes_copied = executor->times.bytes_copied;
    out.staging_bytes = executor->executor == nullptr ? 0 : executor->executor->staging_bytes();
    write_struct(out, state, "state");
  });
}
