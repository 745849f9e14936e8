// The binding under refit.executor: the C API of the executor, and where arrays of other libraries
// lie. Calls that other ranks have to join release the interpreter's lock.

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <string>
#include <vector>

#include "exec/refit_exec.h"

namespace nb = nanobind;

namespace {

/// A failure of the C API as the package's own exception.
void check(refit_status status) {
  if (status == REFIT_OK) return;
  const std::string said = refit_last_error();
  const nb::object package = nb::module_::import_("refit.errors");
  PyErr_SetString(package.attr(status == REFIT_BAD_INPUT ? "InputError" : "WorkError").ptr(),
                  said.c_str());
  throw nb::python_error();
}

template <typename Handle, void (*close)(Handle*)>
class Owned {
 public:
  Owned() = default;
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;
  ~Owned() { reset(); }
  Handle* get() const { return handle_; }
  Handle** out() { return &handle_; }
  void reset() {
    close(handle_);
    handle_ = nullptr;
  }

 private:
  Handle* handle_ = nullptr;
};

struct BoundPlan {
  Owned<refit_plan, refit_plan_close> handle;

  BoundPlan(const std::string& path, int32_t rank) {
    check(refit_plan_open(path.c_str(), rank, handle.out()));
  }
  /// (rank, ranks, tensors, predicted_s, digest, strategy)
  nb::tuple describe() const {
    refit_plan_info info{};
    info.size = sizeof info;
    check(refit_plan_describe(handle.get(), &info));
    return nb::make_tuple(info.rank, info.ranks, info.tensors, info.predicted_s, info.digest,
                          info.strategy);
  }
  /// (name, train dtype, gen dtype, shape, train shards, gen shards)
  nb::tuple tensor(int32_t index) const {
    refit_tensor_info info{};
    info.size = sizeof info;
    check(refit_plan_tensor(handle.get(), index, &info));
    return nb::make_tuple(info.name, info.dtype, info.gen_dtype,
                          std::vector<int64_t>(info.shape, info.shape + info.dims),
                          info.train_shards, info.gen_shards);
  }
  /// The box: one (lo, hi) for each of `dims` dimensions.
  std::vector<nb::tuple> shard(int32_t tensor, bool train, int32_t index, int32_t dims) const {
    refit_shard_info info{};
    info.size = sizeof info;
    check(refit_plan_shard(handle.get(), tensor, train ? REFIT_TRAIN : REFIT_GEN, index, &info));
    std::vector<nb::tuple> box;
    for (int d = 0; d < dims; ++d) box.push_back(nb::make_tuple(info.lo[d], info.hi[d]));
    return box;
  }
};

struct BoundWorld {
  Owned<refit_host_world, refit_host_world_close> handle;

  BoundWorld(int32_t ranks, double timeout_s) {
    check(refit_host_world_open(ranks, timeout_s, handle.out()));
  }
};

class BoundExecutor {
 public:
  /// On the world of this process, or else on the NCCL communicator at `nccl`.
  BoundExecutor(const BoundPlan& plan, const BoundWorld* world, uintptr_t nccl, double timeout_s,
                bool graph, nb::object before_write, nb::object finalize, nb::object after_commit)
      : before_write_(std::move(before_write)),
        finalize_(std::move(finalize)),
        after_commit_(std::move(after_commit)) {
    refit_options options{};
    options.size = sizeof options;
    options.timeout_s = timeout_s;
    options.no_graph = graph ? 0 : 1;
    options.hooks.user = this;
    if (!before_write_.is_none()) options.hooks.before_write = call_before_write;
    if (!finalize_.is_none()) options.hooks.finalize = call_finalize;
    if (!after_commit_.is_none()) options.hooks.after_commit = call_after_commit;
    if (world != nullptr) {
      check(
          refit_executor_on_host(plan.handle.get(), world->handle.get(), &options, handle_.out()));
      return;
    }
    refit_status status = REFIT_OK;
    {
      const nb::gil_scoped_release release;
      status = refit_executor_on_nccl(plan.handle.get(), reinterpret_cast<void*>(nccl), &options,
                                      handle_.out());
    }
    check(status);
  }

  void bind(const std::string& name, bool train, int32_t shard, uintptr_t data,
            const std::optional<std::string>& dtype, const std::vector<int64_t>& strides) {
    refit_tensor tensor{};
    tensor.size = sizeof tensor;
    tensor.name = name.c_str();
    tensor.side = train ? REFIT_TRAIN : REFIT_GEN;
    tensor.shard = shard;
    tensor.data = reinterpret_cast<void*>(data);
    tensor.dtype = dtype ? dtype->c_str() : nullptr;
    tensor.strides = strides.empty() ? nullptr : strides.data();
    check(refit_executor_bind(open(), &tensor));
  }
  void freeze(const std::string& name) { check(refit_executor_freeze(open(), name.c_str())); }

  void prepare() {
    refit_executor* executor = open();
    finish([&] { return refit_executor_prepare(executor); });
  }
  void run(int64_t version, uintptr_t stream) {
    refit_executor* executor = open();
    finish([&] { return refit_executor_run(executor, version, reinterpret_cast<void*>(stream)); });
  }

  /// (address, strides in elements)
  nb::tuple locate(bool train, const std::string& name, int32_t shard, int32_t dims) {
    void* data = nullptr;
    int64_t strides[REFIT_MAX_DIMS] = {};
    check(refit_executor_locate(open(), train ? REFIT_TRAIN : REFIT_GEN, name.c_str(), shard, &data,
                                strides));
    return nb::make_tuple(reinterpret_cast<uintptr_t>(data),
                          std::vector<int64_t>(strides, strides + dims));
  }

  nb::dict state() {
    refit_executor* executor = open();
    refit_state now{};
    now.size = sizeof now;
    finish([&] { return refit_executor_state(executor, &now); });
    nb::dict values;
    values["version"] = now.version;
    values["torn"] = now.torn != 0;
    values["failed"] = now.failed != 0;
    values["runs"] = now.runs;
    values["setup_s"] = now.setup_s;
    values["refit_s"] = now.refit_s;
    values["bytes_received"] = now.bytes_received;
    values["bytes_copied"] = now.bytes_copied;
    values["staging_bytes"] = now.staging_bytes;
    return values;
  }

  void close() {
    const nb::gil_scoped_release release;
    handle_.reset();
  }

 private:
  refit_executor* open() const {
    if (handle_.get() == nullptr) throw nb::value_error("the executor is closed");
    return handle_.get();
  }

  /// What a hook has raised comes out as it is, at the rank that raised it.
  template <typename Call>
  void finish(const Call& call) {
    raised_.reset();
    refit_status status = REFIT_OK;
    {
      const nb::gil_scoped_release release;
      status = call();
    }
    if (raised_) {
      nb::python_error error = std::move(*raised_);
      raised_.reset();
      throw error;
    }
    check(status);
  }

  template <typename Call>
  int guard_hook(const Call& call) {
    const nb::gil_scoped_acquire acquire;
    try {
      call();
      return 0;
    } catch (nb::python_error& error) {
      raised_.emplace(std::move(error));
      return 1;
    }
  }
  static int call_before_write(void* user) {
    auto& self = *static_cast<BoundExecutor*>(user);
    return self.guard_hook([&] { self.before_write_(); });
  }
  static int call_finalize(void* user, const int32_t* tensors, int32_t count) {
    auto& self = *static_cast<BoundExecutor*>(user);
    return self.guard_hook([&] { self.finalize_(std::vector<int32_t>(tensors, tensors + count)); });
  }
  static void call_after_commit(void* user, int64_t version) {
    auto& self = *static_cast<BoundExecutor*>(user);
    self.guard_hook([&] { self.after_commit_(version); });
  }

  nb::object before_write_, finalize_, after_commit_;
  std::optional<nb::python_error> raised_;
  Owned<refit_executor, refit_executor_close> handle_;  // first to go
};

/// Where a DLPack array lies: (address, on the host, shape, strides in elements, code, bits,
/// lanes).
nb::tuple describe_dlpack(const nb::ndarray<nb::ro>& array) {
  std::vector<int64_t> shape, strides;
  for (size_t d = 0; d < array.ndim(); ++d) {
    shape.push_back(static_cast<int64_t>(array.shape(d)));
    strides.push_back(array.stride(d));
  }
  const bool host = array.device_type() == nb::device::cpu::value ||
                    array.device_type() == nb::device::cuda_host::value;
  const nb::dlpack::dtype dtype = array.dtype();
  return nb::make_tuple(reinterpret_cast<uintptr_t>(array.data()), host, shape, strides, dtype.code,
                        dtype.bits, dtype.lanes);
}

}  // namespace

NB_MODULE(_exec, module) {
  nb::class_<BoundPlan>(module, "BoundPlan")
      .def(nb::init<const std::string&, int32_t>())
      .def("describe", &BoundPlan::describe)
      .def("tensor", &BoundPlan::tensor)
      .def("shard", &BoundPlan::shard);
  nb::class_<BoundWorld>(module, "BoundWorld").def(nb::init<int32_t, double>());
  nb::class_<BoundExecutor>(module, "BoundExecutor")
      .def(nb::init<const BoundPlan&, const BoundWorld*, uintptr_t, double, bool, nb::object,
                    nb::object, nb::object>(),
           nb::arg("plan"), nb::arg("world").none(), nb::arg("nccl"), nb::arg("timeout_s"),
           nb::arg("graph"), nb::arg("before_write").none(), nb::arg("finalize").none(),
           nb::arg("after_commit").none())
      .def("bind", &BoundExecutor::bind, nb::arg("name"), nb::arg("train"), nb::arg("shard"),
           nb::arg("data"), nb::arg("dtype").none(), nb::arg("strides"))
      .def("freeze", &BoundExecutor::freeze)
      .def("prepare", &BoundExecutor::prepare)
      .def("run", &BoundExecutor::run)
      .def("locate", &BoundExecutor::locate)
      .def("state", &BoundExecutor::state)
      .def("close", &BoundExecutor::close);
  module.def("describe_dlpack", &describe_dlpack);
}
