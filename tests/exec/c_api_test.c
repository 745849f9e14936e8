/* The C API from C99: what refit_exec.h promises about bad arguments, sizes and errors. PLAN is a
 * plan of two ranks: tensor "w" of 8 x 6 bf16, rows on rank 0, all of it on rank 1, and "b". */

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "exec/refit_exec.h"

static int failures = 0;

#define EXPECT(condition)                                                                 \
  do {                                                                                    \
    if (!(condition)) {                                                                   \
      fprintf(stderr, "%s:%d: not %s (last error: %s)\n", __FILE__, __LINE__, #condition, \
              refit_last_error());                                                        \
      ++failures;                                                                         \
    }                                                                                     \
  } while (0)

static void expect_refused(refit_status status, const char* part, int line) {
  if (status == REFIT_BAD_INPUT && strstr(refit_last_error(), part) != NULL) return;
  fprintf(stderr, "%s:%d: status %d, \"%s\", expected \"%s\"\n", __FILE__, line, (int)status,
          refit_last_error(), part);
  ++failures;
}
#define EXPECT_REFUSED(call, part) expect_refused(call, part, __LINE__)

enum { kRows = 8, kColumns = 6, kApart = 10 };

static const char* path;
static refit_host_world* world;
static uint16_t source[kRows * kApart], target[kRows * kColumns], other[2][4];

typedef struct calls {
  int before, finalized, after, fail_at;
  int64_t version;
} calls;
static calls called[2];

static int before(void* user) {
  return ++((calls*)user)->before == ((calls*)user)->fail_at ? 7 : 0;
}
static int finalize(void* user, const int32_t* tensors, int32_t count) {
  (void)tensors;
  ((calls*)user)->finalized += count;
  return 0;
}
static void after(void* user, int64_t version) {
  ++((calls*)user)->after;
  ((calls*)user)->version = version;
}

static refit_executor* open_executor(int32_t rank, int fail_at) {
  refit_plan* plan = NULL;
  EXPECT(refit_plan_open(path, rank, &plan) == REFIT_OK);
  memset(&called[rank], 0, sizeof called[rank]);
  called[rank].fail_at = fail_at;
  refit_options options = {.size = sizeof options};
  options.hooks.user = &called[rank];
  options.hooks.before_write = before;
  options.hooks.finalize = finalize;
  options.hooks.after_commit = after;
  refit_executor* executor = NULL;
  EXPECT(refit_executor_on_host(plan, world, &options, &executor) == REFIT_OK);
  refit_plan_close(plan); /* the executor lives on */
  return executor;
}

/* An executor is used by several threads: this one looks at it while another runs refits. */
static void* watch(void* argument) {
  refit_executor* executor = argument;
  refit_state state = {.size = sizeof state};
  int64_t seen = 0;
  do {
    EXPECT(refit_executor_state(executor, &state) == REFIT_OK);
    EXPECT(state.runs >= seen && state.torn == 0);
    seen = state.runs;
  } while (state.runs < 2 && state.failed == 0);
  return NULL;
}

static void* run_rank(void* argument) {
  const int32_t rank = *(int32_t*)argument;
  refit_executor* executor = open_executor(rank, 0);
  const int64_t strides[2] = {kApart, 1};
  refit_tensor w = {.size = sizeof w, .name = "w", .dtype = "bfloat16"};
  w.side = rank == 0 ? REFIT_TRAIN : REFIT_GEN;
  w.data = rank == 0 ? (void*)source : (void*)target;
  w.strides = rank == 0 ? strides : NULL;
  EXPECT(refit_executor_bind(executor, &w) == REFIT_OK);
  EXPECT(refit_executor_freeze(executor, "frozen") == REFIT_OK);
  EXPECT_REFUSED(refit_executor_run(executor, 1, NULL), "not prepared");
  EXPECT(refit_executor_prepare(executor) == REFIT_OK);
  EXPECT_REFUSED(refit_executor_prepare(executor), "prepared");
  EXPECT_REFUSED(refit_executor_bind(executor, &w), "prepared");

  void* at = NULL;
  int64_t found[REFIT_MAX_DIMS] = {0};
  EXPECT(refit_executor_locate(executor, w.side, "w", 0, &at, found) == REFIT_OK);
  EXPECT(at == w.data && found[0] == (rank == 0 ? kApart : kColumns) && found[1] == 1);
  EXPECT_REFUSED(refit_executor_locate(executor, w.side, "w", 1, &at, found), "shard 1");
  EXPECT_REFUSED(refit_executor_locate(executor, REFIT_GEN, "frozen", 0, &at, NULL), "frozen");
  EXPECT(refit_executor_locate(executor, w.side, "b", 0, &at, NULL) == REFIT_OK);
  if (rank == 0) memcpy(at, other[0], sizeof other[0]);

  EXPECT_REFUSED(refit_executor_run(executor, -1, NULL), "version");
  pthread_t watchers[2];
  for (int i = 0; i < 2; ++i) EXPECT(pthread_create(&watchers[i], NULL, watch, executor) == 0);
  EXPECT(refit_executor_run(executor, 5, NULL) == REFIT_OK);
  EXPECT(refit_executor_run(executor, 0, NULL) == REFIT_OK);
  for (int i = 0; i < 2; ++i) pthread_join(watchers[i], NULL);
  if (rank == 1) memcpy(other[1], at, sizeof other[1]);
  refit_state state = {.size = sizeof state};
  EXPECT(refit_executor_state(executor, &state) == REFIT_OK);
  EXPECT(state.version == 6 && state.runs == 2 && state.torn == 0 && state.failed == 0);
  EXPECT(state.bytes_received == (rank == 0 ? 0 : (kRows * kColumns + 4) * 2));
  refit_executor_close(executor);
  return NULL;
}

static void* run_failing(void* argument) {
  const int32_t rank = *(int32_t*)argument;
  refit_executor* executor = open_executor(rank, 2);
  EXPECT(refit_executor_prepare(executor) == REFIT_OK);
  EXPECT(refit_executor_run(executor, 0, NULL) == REFIT_OK);
  EXPECT(refit_executor_run(executor, 0, NULL) == REFIT_FAILED);
  EXPECT(strstr(refit_last_error(), "before_write") != NULL);
  EXPECT(refit_executor_run(executor, 0, NULL) == REFIT_FAILED);
  refit_state state = {.size = sizeof state};
  EXPECT(refit_executor_state(executor, &state) == REFIT_OK);
  EXPECT(state.version == 1 && state.failed == 1 && state.runs == 1);
  refit_executor_close(executor);
  return NULL;
}

static void on_both(void* (*body)(void*)) {
  static int32_t ranks[2] = {0, 1};
  pthread_t threads[2];
  EXPECT(refit_host_world_open(2, 30, &world) == REFIT_OK);
  for (int r = 0; r < 2; ++r) EXPECT(pthread_create(&threads[r], NULL, body, &ranks[r]) == 0);
  for (int r = 0; r < 2; ++r) pthread_join(threads[r], NULL);
  refit_host_world_close(world);
}

static void bad_arguments(void) {
  refit_plan* plan = NULL;
  EXPECT_REFUSED(refit_plan_open("/no/such/file.plan", 0, &plan), "/no/such/file.plan");
  EXPECT_REFUSED(refit_plan_open(NULL, 0, &plan), "path: found null");
  EXPECT_REFUSED(refit_plan_open(path, 2, &plan), "2");
  EXPECT_REFUSED(refit_plan_open(path, -1, &plan), "-1");
  EXPECT(plan == NULL);
  EXPECT(refit_plan_open(path, 1, &plan) == REFIT_OK);

  refit_plan_info info = {.size = sizeof info};
  EXPECT(refit_plan_describe(plan, &info) == REFIT_OK);
  EXPECT(info.rank == 1 && info.ranks == 2 && info.tensors == 3 && strlen(info.digest) == 64);
  EXPECT_REFUSED(refit_plan_describe(NULL, &info), "plan: found null");
  EXPECT_REFUSED(refit_plan_describe(plan, NULL), "info: found null");
  info.size = 0;
  EXPECT_REFUSED(refit_plan_describe(plan, &info), "size 0");
  /* A caller with an older, shorter struct: nothing behind it is touched. */
  memset(&info, 0x55, sizeof info);
  info.size = offsetof(refit_plan_info, predicted_s);
  EXPECT(refit_plan_describe(plan, &info) == REFIT_OK);
  const char* const untouched = info.digest;
  EXPECT(info.ranks == 2 && memcmp(&untouched, "\x55\x55\x55\x55", 4) == 0);
  /* One with a newer, longer one: what this library does not know stays as it is. */
  struct {
    refit_plan_info known;
    int64_t newer;
  } longer = {.known = {.size = sizeof longer}, .newer = 7};
  EXPECT(refit_plan_describe(plan, &longer.known) == REFIT_OK);
  EXPECT(longer.known.ranks == 2 && longer.known.size == sizeof longer && longer.newer == 7);

  refit_tensor_info tensor = {.size = sizeof tensor};
  EXPECT(refit_plan_tensor(plan, 0, &tensor) == REFIT_OK);
  EXPECT(strcmp(tensor.name, "w") == 0 && strcmp(tensor.dtype, "bf16") == 0 && tensor.dims == 2);
  EXPECT(tensor.shape[0] == kRows && tensor.train_shards == 0 && tensor.gen_shards == 1);
  EXPECT_REFUSED(refit_plan_tensor(plan, 3, &tensor), "tensor: found 3, expected 0..2");
  EXPECT_REFUSED(refit_plan_tensor(plan, -1, &tensor), "-1");
  refit_shard_info box = {.size = sizeof box};
  EXPECT(refit_plan_shard(plan, 0, REFIT_GEN, 0, &box) == REFIT_OK);
  EXPECT(box.lo[0] == 0 && box.hi[0] == kRows && box.hi[1] == kColumns);
  EXPECT_REFUSED(refit_plan_shard(plan, 0, REFIT_GEN, 1, &box), "shard: found 1");
  EXPECT_REFUSED(refit_plan_shard(plan, 0, REFIT_TRAIN, 0, &box), "shard");
  EXPECT_REFUSED(refit_plan_shard(plan, 0, (refit_side)2, 0, &box), "side");

  refit_executor* executor = NULL;
  EXPECT_REFUSED(refit_host_world_open(0, 30, &world), "ranks");
  EXPECT(refit_host_world_open(3, 30, &world) == REFIT_OK);
  EXPECT_REFUSED(refit_executor_on_host(plan, world, NULL, &executor), "3 ranks");
  refit_host_world_close(world);
  EXPECT(refit_host_world_open(2, 30, &world) == REFIT_OK);
  refit_options options = {0};
  EXPECT_REFUSED(refit_executor_on_host(plan, world, &options, &executor), "size 0");
  EXPECT(refit_executor_on_host(plan, world, NULL, &executor) == REFIT_OK);
  refit_executor* second = NULL;
  EXPECT_REFUSED(refit_executor_on_host(plan, world, NULL, &second), "second executor of rank 1");
  EXPECT_REFUSED(refit_executor_on_nccl(plan, NULL, NULL, &second), "");
  EXPECT(second == NULL);

  refit_tensor w = {.size = sizeof w, .name = "w", .side = REFIT_GEN, .data = target};
  const int64_t backwards[2] = {-6, 1};
  EXPECT_REFUSED(refit_executor_bind(NULL, &w), "executor: found null");
  EXPECT_REFUSED(refit_executor_bind(executor, NULL), "tensor: found null");
  w.name = "nobody";
  EXPECT_REFUSED(refit_executor_bind(executor, &w), "\"nobody\"");
  w.name = "w";
  w.side = REFIT_TRAIN;
  EXPECT_REFUSED(refit_executor_bind(executor, &w), "the rank holds nothing of it");
  w.side = REFIT_GEN;
  w.dtype = "fp32";
  EXPECT_REFUSED(refit_executor_bind(executor, &w), "expected bf16");
  w.dtype = NULL;
  w.strides = backwards;
  EXPECT_REFUSED(refit_executor_bind(executor, &w), "stride of -6");
  w.strides = NULL;
  w.data = NULL;
  EXPECT_REFUSED(refit_executor_bind(executor, &w), "no address");
  EXPECT_REFUSED(refit_executor_freeze(executor, "nobody"), "\"nobody\"");
  refit_executor_close(executor);
  refit_executor_close(NULL);
  refit_plan_close(plan);
  refit_plan_close(NULL);
  refit_host_world_close(world);
}

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  path = argv[1];
  EXPECT(strlen(refit_version()) > 0);
  EXPECT(strcmp(refit_last_error(), "") == 0);
  bad_arguments();

  for (int i = 0; i < kRows * kApart; ++i) source[i] = (uint16_t)(i * 7 + 1);
  for (int i = 0; i < 4; ++i) other[0][i] = (uint16_t)(1000 + i);
  on_both(run_rank);
  for (int row = 0; row < kRows; ++row) {
    for (int column = 0; column < kColumns; ++column) {
      EXPECT(target[row * kColumns + column] == source[row * kApart + column]);
    }
  }
  EXPECT(memcmp(other[0], other[1], sizeof other[0]) == 0);
  /* Rank 0 receives nothing: no hooks. */
  EXPECT(called[0].before == 0 && called[0].after == 0);
  EXPECT(called[1].before == 2 && called[1].finalized == 4 && called[1].after == 2);
  EXPECT(called[1].version == 6);

  on_both(run_failing);
  if (failures == 0) printf("c_api_test: passed\n");
  return failures == 0 ? 0 : 1;
}
