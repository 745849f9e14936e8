#ifndef REFIT_EXEC_H
#define REFIT_EXEC_H

/* What a framework calls to replay a plan between two training steps. C99.
 *
 *   1. open a plan                      refit_plan_open
 *   2. make an executor for one rank    refit_executor_on_host | _on_mpi | _on_nccl
 *   3. say where tensors lie            refit_executor_bind      (what is not bound is allocated)
 *   4. prepare, with all ranks          refit_executor_prepare   (connects; once)
 *   5. after each training step         refit_executor_run       (with all ranks; as often as wanted)
 *
 * Functions return a refit_status; refit_last_error() then says what was found and what was expected.
 * Handles are opaque. An executor may be used by several threads, one call at a time runs; different
 * executors are independent. Structs begin with their size, so that they can grow: set it before
 * every call. Enumerations only grow at their end. exec/examples/ has complete programs. */

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define REFIT_API __attribute__((visibility("default")))
#else
#define REFIT_API
#endif

#define REFIT_MAX_DIMS 6

typedef enum refit_status {
  REFIT_OK = 0,
  REFIT_FAILED = 1,    /* the work failed: a peer is gone, a rank has aborted, a timeout */
  REFIT_BAD_INPUT = 2, /* an argument, a file, or something that this build or machine lacks */
} refit_status;

typedef enum refit_side { REFIT_TRAIN = 0, REFIT_GEN = 1 } refit_side;

typedef struct refit_plan refit_plan;
typedef struct refit_host_world refit_host_world;
typedef struct refit_executor refit_executor;

/* "MAJOR.MINOR.PATCH". */
REFIT_API const char* refit_version(void);

/* One line about the last failure on this thread; never null. */
REFIT_API const char* refit_last_error(void);

/* ---- The plan ---- */

/* Reads what one rank needs of a plan file, and verifies it. */
REFIT_API refit_status refit_plan_open(const char* path, int32_t rank, refit_plan** plan);
/* Executors made from it live on. */
REFIT_API void refit_plan_close(refit_plan* plan);

typedef struct refit_plan_info {
  size_t size;
  int32_t rank, ranks, tensors;
  double predicted_s;
  const char* digest;   /* as long as the plan */
  const char* strategy; /* as long as the plan */
} refit_plan_info;
REFIT_API refit_status refit_plan_describe(const refit_plan* plan, refit_plan_info* info);

typedef struct refit_tensor_info {
  size_t size;
  const char* name;  /* as long as the plan, as the rest */
  const char* dtype; /* of train shards: "bf16", ... */
  int32_t dims;
  int64_t shape[REFIT_MAX_DIMS];
  int32_t train_shards, gen_shards; /* on this rank */
  const char* gen_dtype;
} refit_tensor_info;
REFIT_API refit_status refit_plan_tensor(const refit_plan* plan, int32_t tensor,
                                         refit_tensor_info* info);

/* A shard is a box of its tensor, half-open: element lo is its first. */
typedef struct refit_shard_info {
  size_t size;
  int64_t lo[REFIT_MAX_DIMS], hi[REFIT_MAX_DIMS];
} refit_shard_info;
REFIT_API refit_status refit_plan_shard(const refit_plan* plan, int32_t tensor, refit_side side,
                                        int32_t shard, refit_shard_info* info);

/* ---- An executor ---- */

typedef struct refit_hooks {
  void* user;
  /* On ranks that receive. What returns other than 0 fails the refit on every rank. */
  int (*before_write)(void* user); /* stop serving: the first byte is about to be written */
  int (*finalize)(void* user, const int32_t* tensors,
                  int32_t count);                    /* all bytes of here are in place */
  void (*after_commit)(void* user, int64_t version); /* all ranks have finished */
} refit_hooks;

typedef struct refit_options {
  size_t size;
  double timeout_s; /* nothing moves for so long: the refit fails; 0: 30 */
  int32_t no_graph; /* nccl: enqueue every replay instead of capturing the second in a CUDA graph */
  refit_hooks hooks;
} refit_options;

/* All ranks as threads of this process. `timeout_s` is that of all of them. */
REFIT_API refit_status refit_host_world_open(int32_t ranks, double timeout_s,
                                             refit_host_world** world);
/* After its executors. */
REFIT_API void refit_host_world_close(refit_host_world* world);
REFIT_API refit_status refit_executor_on_host(const refit_plan* plan, refit_host_world* world,
                                              const refit_options* options,
                                              refit_executor** executor);

/* `communicator` points to an MPI_Comm whose ranks are the plan's; it is duplicated. Collective.
 * One MPI executor at a time. */
REFIT_API refit_status refit_executor_on_mpi(const refit_plan* plan, const void* communicator,
                                             const refit_options* options,
                                             refit_executor** executor);
/* The same from a Fortran handle (mpi4py: comm.py2f()). */
REFIT_API refit_status refit_executor_on_mpi_fortran(const refit_plan* plan, int communicator,
                                                     const refit_options* options,
                                                     refit_executor** executor);

/* `communicator` is an ncclComm_t whose ranks are the plan's; it is split, and has to live as long as
 * the executor. Uses the calling thread's device. Collective. */
REFIT_API refit_status refit_executor_on_nccl(const refit_plan* plan, void* communicator,
                                              const refit_options* options,
                                              refit_executor** executor);

/* Frees what it allocated, tensors included. */
REFIT_API void refit_executor_close(refit_executor* executor);

/* ---- Tensors ---- */

typedef struct refit_tensor {
  size_t size;
  const char* name;
  refit_side side;
  int32_t shard;          /* which of this rank's shards of the tensor; mostly 0 */
  void* data;             /* the shard's first element; device memory for nccl */
  const char* dtype;      /* null: not compared with the plan's */
  const int64_t* strides; /* by dimension, in elements; null: dense, row-major */
} refit_tensor;

/* Before prepare. All shards of a tensor on a side, or none: then they are allocated. */
REFIT_API refit_status refit_executor_bind(refit_executor* executor, const refit_tensor* tensor);

/* This tensor shall not move: its gen shards stay as they are. Before prepare; all ranks say the
 * same. */
REFIT_API refit_status refit_executor_freeze(refit_executor* executor, const char* tensor);

/* Resolves, connects, allocates. Compares the plan's digest with the other ranks'. Collective. */
REFIT_API refit_status refit_executor_prepare(refit_executor* executor);

/* Where a shard lies, bound or allocated. After prepare. */
REFIT_API refit_status refit_executor_locate(refit_executor* executor, refit_side side,
                                             const char* tensor, int32_t shard, void** data,
                                             int64_t strides[REFIT_MAX_DIMS]);

/* ---- Refits ---- */

/* One refit to `version` (0: one more than now). Begins after the work that `stream` (a cudaStream_t,
 * nccl only, may be null) has now; returns when every rank has finished, or when one has failed:
 * then all ranks' calls fail, and an executor that has failed can only be closed. Collective. */
REFIT_API refit_status refit_executor_run(refit_executor* executor, int64_t version, void* stream);

typedef struct refit_state {
  size_t size;
  int64_t version; /* of the last refit that succeeded on all ranks */
  int32_t torn;    /* some bytes of gen shards may be of a later version: not to be served */
  int32_t failed;
  int64_t runs; /* that succeeded */
  double setup_s, refit_s;
  int64_t bytes_received, bytes_copied, staging_bytes;
} refit_state;
/* Waits for a run in progress. */
REFIT_API refit_status refit_executor_state(refit_executor* executor, refit_state* state);

#ifdef __cplusplus
}
#endif

#endif
