/* Replays a plan with a thread a rank: consumer PLAN. Train shards are filled with one byte, which
 * has to be in every gen shard then. Prints the version of the library. */

#include <pthread.h>
#include <refit_exec.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char* path;
static refit_host_world* world;

static void check(refit_status status) {
  if (status == REFIT_OK) return;
  fprintf(stderr, "%s\n", refit_last_error());
  exit((int)status);
}

/* Fills the shards of the train side (bf16, dense), or counts the bytes of gen shards that
 * differ. */
static long visit(refit_executor* executor, const refit_plan* plan, refit_side side) {
  refit_plan_info info = {.size = sizeof info};
  check(refit_plan_describe(plan, &info));
  long wrong = 0;
  for (int32_t t = 0; t < info.tensors; ++t) {
    refit_tensor_info tensor = {.size = sizeof tensor};
    check(refit_plan_tensor(plan, t, &tensor));
    const int32_t shards = side == REFIT_TRAIN ? tensor.train_shards : tensor.gen_shards;
    for (int32_t s = 0; s < shards; ++s) {
      refit_shard_info shard = {.size = sizeof shard};
      void* data = NULL;
      check(refit_plan_shard(plan, t, side, s, &shard));
      check(refit_executor_locate(executor, side, tensor.name, s, &data, NULL));
      int64_t bytes = 2;
      for (int d = 0; d < tensor.dims; ++d) bytes *= shard.hi[d] - shard.lo[d];
      if (side == REFIT_TRAIN) memset(data, 0x5a, (size_t)bytes);
      for (int64_t i = 0; i < bytes; ++i) wrong += ((unsigned char*)data)[i] != 0x5a;
    }
  }
  return wrong;
}

static void* run_rank(void* argument) {
  refit_plan* plan = NULL;
  refit_executor* executor = NULL;
  check(refit_plan_open(path, *(int32_t*)argument, &plan));
  check(refit_executor_on_host(plan, world, NULL, &executor));
  check(refit_executor_prepare(executor));
  visit(executor, plan, REFIT_TRAIN);
  check(refit_executor_run(executor, 0, NULL));
  if (visit(executor, plan, REFIT_GEN) != 0) exit(3);
  refit_executor_close(executor);
  refit_plan_close(plan);
  return NULL;
}

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  path = argv[1];
  refit_plan* plan = NULL;
  check(refit_plan_open(path, 0, &plan));
  refit_plan_info info = {.size = sizeof info};
  check(refit_plan_describe(plan, &info));
  check(refit_host_world_open(info.ranks, 30, &world));
  int32_t* ranks = malloc((size_t)info.ranks * sizeof *ranks);
  pthread_t* threads = malloc((size_t)info.ranks * sizeof *threads);
  for (int32_t r = 0; r < info.ranks; ++r) {
    ranks[r] = r;
    if (pthread_create(&threads[r], NULL, run_rank, &ranks[r]) != 0) return 1;
  }
  for (int32_t r = 0; r < info.ranks; ++r) pthread_join(threads[r], NULL);
  free(threads);
  free(ranks);
  refit_plan_close(plan);
  refit_host_world_close(world);
  printf("%s\n", refit_version());
  return 0;
}
