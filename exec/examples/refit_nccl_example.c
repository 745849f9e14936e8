/* A trainer and a generator on GPUs, a process a GPU: mpirun -n RANKS refit_nccl_example PLAN. MPI carries
 * NCCL's unique id, as in NCCL's own documentation; a framework has its communicator already. */

#include <cuda_runtime_api.h>
#include <mpi.h>
#include <nccl.h>

#include "exec/examples/example.h"

static void check_cuda(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
  exit(2);
}

static void check_nccl(ncclResult_t result, const char* what) {
  if (result == ncclSuccess) return;
  fprintf(stderr, "%s: %s\n", what, ncclGetErrorString(result));
  exit(1);
}

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  if (argc != 2) {
    fprintf(stderr, "usage: mpirun -n RANKS refit_nccl_example PLAN\n");
    MPI_Abort(MPI_COMM_WORLD, 2);
  }
  int rank = 0, ranks = 0, local = 0, devices = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  MPI_Comm host;
  MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &host);
  MPI_Comm_rank(host, &local);
  MPI_Comm_free(&host);
  check_cuda(cudaGetDeviceCount(&devices), "devices");
  check_cuda(cudaSetDevice(local % devices), "device");

  ncclUniqueId id;
  if (rank == 0) check_nccl(ncclGetUniqueId(&id), "unique id");
  MPI_Bcast(&id, sizeof id, MPI_BYTE, 0, MPI_COMM_WORLD);
  ncclComm_t comm = NULL;
  check_nccl(ncclCommInitRank(&comm, ranks, id, rank), "communicator");
  cudaStream_t stream = NULL;
  check_cuda(cudaStreamCreate(&stream), "stream");

  refit_plan* plan = NULL;
  check(refit_plan_open(argv[1], rank, &plan), "open");
  refit_executor* executor = NULL;
  check(refit_executor_on_nccl(plan, comm, NULL, &executor), "executor");
  int32_t count = 0;
  int64_t largest = 1;
  shard* shards = list_shards(plan, &count);
  for (int32_t s = 0; s < count; ++s) {
    check_cuda(cudaMalloc(&shards[s].data, (size_t)shards[s].bytes), "memory");
    bind_shard(executor, &shards[s]);
    if (shards[s].bytes > largest) largest = shards[s].bytes;
  }
  unsigned char* here = malloc((size_t)largest);
  if (here == NULL) exit(1);
  check(refit_executor_prepare(executor), "prepare");

  for (int64_t version = 1; version <= 3; ++version) {
    for (int32_t s = 0; s < count; ++s) { /* the training step */
      if (shards[s].side != REFIT_TRAIN) continue;
      make_weights(&shards[s], version, here);
      check_cuda(cudaMemcpyAsync(shards[s].data, here, (size_t)shards[s].bytes,
                                 cudaMemcpyHostToDevice, stream),
                 "weights");
      check_cuda(cudaStreamSynchronize(stream), "weights"); /* `here` is used again */
    }
    check(refit_executor_run(executor, version, stream), "refit");
    for (int32_t s = 0; s < count; ++s) { /* the generation */
      if (shards[s].side != REFIT_GEN) continue;
      check_cuda(cudaMemcpy(here, shards[s].data, (size_t)shards[s].bytes, cudaMemcpyDeviceToHost),
                 "weights");
      check_weights(&shards[s], version, rank, here);
    }
  }
  if (rank == 0) print_state(executor);
  refit_executor_close(executor);
  for (int32_t s = 0; s < count; ++s) cudaFree(shards[s].data);
  free(shards);
  free(here);
  refit_plan_close(plan);
  ncclCommDestroy(comm);
  if (rank == 0) printf("%d ranks, 3 versions, every byte right\n", ranks);
  MPI_Finalize();
  return 0;
}
