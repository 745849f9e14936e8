/* A trainer and a generator in one process, a thread a rank: refit_host_example PLAN. */

#include <pthread.h>

#include "exec/examples/example.h"

typedef struct job {
  const char* path;
  int32_t rank;
  refit_host_world* world;
  pthread_t thread;
} job;

static void* run_rank(void* argument) {
  const job* mine = argument;
  refit_plan* plan = NULL;
  check(refit_plan_open(mine->path, mine->rank, &plan), "open");
  engine served = {0, 0};
  refit_options options = {.size = sizeof options};
  options.hooks.user = &served;
  options.hooks.before_write = stop_serving;
  options.hooks.after_commit = serve;
  refit_executor* executor = NULL;
  check(refit_executor_on_host(plan, mine->world, &options, &executor), "executor");
  train_and_generate(executor, plan, mine->rank, &served);
  if (mine->rank == 0) print_state(executor);
  refit_executor_close(executor);
  refit_plan_close(plan);
  return NULL;
}

int main(int argc, char** argv) {
  if (argc != 2) {
    fprintf(stderr, "usage: refit_host_example PLAN\n");
    return 2;
  }
  refit_plan* plan = NULL;
  check(refit_plan_open(argv[1], 0, &plan), "open");
  refit_plan_info info = {.size = sizeof info};
  check(refit_plan_describe(plan, &info), "describe");
  refit_plan_close(plan);

  refit_host_world* world = NULL;
  check(refit_host_world_open(info.ranks, 30, &world), "world");
  job* jobs = calloc((size_t)info.ranks, sizeof *jobs);
  if (jobs == NULL) return 1;
  for (int32_t rank = 0; rank < info.ranks; ++rank) {
    jobs[rank].path = argv[1];
    jobs[rank].rank = rank;
    jobs[rank].world = world;
    if (pthread_create(&jobs[rank].thread, NULL, run_rank, &jobs[rank]) != 0) return 1;
  }
  for (int32_t rank = 0; rank < info.ranks; ++rank) pthread_join(jobs[rank].thread, NULL);
  free(jobs);
  refit_host_world_close(world);
  printf("%d ranks, 3 versions, every byte right\n", (int)info.ranks);
  return 0;
}
