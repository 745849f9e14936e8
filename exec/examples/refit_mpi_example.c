/* A trainer and a generator over MPI, in host memory: mpirun -n RANKS refit_mpi_example PLAN. */

#include <mpi.h>

#include "exec/examples/example.h"

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  if (argc != 2) {
    fprintf(stderr, "usage: mpirun -n RANKS refit_mpi_example PLAN\n");
    MPI_Abort(MPI_COMM_WORLD, 2);
  }
  int rank = 0, ranks = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);

  refit_plan* plan = NULL;
  check(refit_plan_open(argv[1], rank, &plan), "open");
  engine served = {0, 0};
  refit_options options = {.size = sizeof options};
  options.hooks.user = &served;
  options.hooks.before_write = stop_serving;
  options.hooks.after_commit = serve;
  const MPI_Comm comm = MPI_COMM_WORLD;
  refit_executor* executor = NULL;
  check(refit_executor_on_mpi(plan, &comm, &options, &executor), "executor");
  train_and_generate(executor, plan, rank, &served);
  if (rank == 0) print_state(executor);
  refit_executor_close(executor);
  refit_plan_close(plan);
  if (rank == 0) printf("%d ranks, 3 versions, every byte right\n", ranks);
  MPI_Finalize();
  return 0;
}
