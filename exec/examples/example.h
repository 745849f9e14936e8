/* What the examples share: a trainer writes weights that are a function of tensor, place and version;
 * a generator checks what it has received. C99, nothing but refit_exec.h. */

#ifndef REFIT_EXAMPLE_H
#define REFIT_EXAMPLE_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "exec/refit_exec.h"

typedef struct shard {
  refit_tensor_info tensor;
  refit_shard_info box;
  refit_side side;
  int32_t index; /* among this rank's shards of the tensor */
  int64_t bytes;
  void* data; /* where the weights live: host or device memory */
} shard;

static void check(refit_status status, const char* what) {
  if (status == REFIT_OK) return;
  fprintf(stderr, "%s: %s\n", what, refit_last_error());
  exit(status == REFIT_BAD_INPUT ? 2 : 1);
}

static int64_t element_bytes(const char* dtype) {
  static const char* const names[] = {"fp64", "int64", "fp32", "int32", "bf16", "fp16"};
  static const int64_t bytes[] = {8, 8, 4, 4, 2, 2};
  for (int i = 0; i < 6; ++i) {
    if (strcmp(dtype, names[i]) == 0) return bytes[i];
  }
  if (strcmp(dtype, "fp4_e2m1") == 0) {
    fprintf(stderr, "the example has no 4-bit tensors\n");
    exit(2);
  }
  return 1;
}

/* All shards that this rank holds, train ones first. */
static shard* list_shards(const refit_plan* plan, int32_t* count) {
  refit_plan_info info = {.size = sizeof info};
  check(refit_plan_describe(plan, &info), "describe");
  shard* list = NULL;
  *count = 0;
  for (int side = REFIT_TRAIN; side <= REFIT_GEN; ++side) {
    for (int32_t t = 0; t < info.tensors; ++t) {
      refit_tensor_info tensor = {.size = sizeof tensor};
      check(refit_plan_tensor(plan, t, &tensor), "tensor");
      const int32_t shards = side == REFIT_TRAIN ? tensor.train_shards : tensor.gen_shards;
      for (int32_t s = 0; s < shards; ++s) {
        shard one = {.tensor = tensor, .side = (refit_side)side, .index = s};
        one.box.size = sizeof one.box;
        check(refit_plan_shard(plan, t, one.side, s, &one.box), "shard");
        one.bytes = element_bytes(tensor.dtype);
        for (int d = 0; d < tensor.dims; ++d) one.bytes *= one.box.hi[d] - one.box.lo[d];
        list = realloc(list, (size_t)(*count + 1) * sizeof *list);
        if (list == NULL) exit(1);
        list[(*count)++] = one;
      }
    }
  }
  return list;
}

static void bind_shard(refit_executor* executor, const shard* one) {
  const refit_tensor tensor = {.size = sizeof tensor,
                               .name = one->tensor.name,
                               .side = one->side,
                               .shard = one->index,
                               .data = one->data,
                               .dtype = one->tensor.dtype};
  check(refit_executor_bind(executor, &tensor), "bind");
}

/* The weights of a shard at a version, densely, row by row. */
static void make_weights(const shard* one, int64_t version, unsigned char* out) {
  const int64_t width = element_bytes(one->tensor.dtype);
  uint64_t seed = (uint64_t)version;
  for (const char* c = one->tensor.name; *c != '\0'; ++c) seed = seed * 31 + (unsigned char)*c;
  int64_t at[REFIT_MAX_DIMS];
  for (int d = 0; d < one->tensor.dims; ++d) at[d] = one->box.lo[d];
  for (int64_t i = 0; i < one->bytes; i += width) {
    uint64_t place = 0; /* of the element in the whole tensor */
    for (int d = 0; d < one->tensor.dims; ++d) {
      place = place * (uint64_t)one->tensor.shape[d] + (uint64_t)at[d];
    }
    const uint64_t value = (place + seed) * 0x9e3779b97f4a7c15u;
    for (int64_t b = 0; b < width; ++b) out[i + b] = (unsigned char)(value >> (56 - 8 * b));
    for (int d = one->tensor.dims - 1; d >= 0 && ++at[d] == one->box.hi[d]; --d) {
      at[d] = one->box.lo[d];
    }
  }
}

/* Ends the program where a generator's bytes are not those of the version. */
static void check_weights(const shard* one, int64_t version, int32_t rank,
                          const unsigned char* found) {
  unsigned char* expected = malloc((size_t)one->bytes);
  if (expected == NULL) exit(1);
  make_weights(one, version, expected);
  if (memcmp(found, expected, (size_t)one->bytes) != 0) {
    fprintf(stderr, "rank %d: %s is not that of version %lld\n", (int)rank, one->tensor.name,
            (long long)version);
    exit(1);
  }
  free(expected);
}

/* An engine that stops serving while its weights change. */
typedef struct engine {
  int serving;
  int64_t version;
} engine;

static int stop_serving(void* user) {
  ((engine*)user)->serving = 0;
  return 0;
}

static void serve(void* user, int64_t version) {
  ((engine*)user)->serving = 1;
  ((engine*)user)->version = version;
}

/* Three training steps with weights in host memory, each followed by a refit. The same program on
 * every rank: it trains where the plan has train shards of it, and generates where it has gen shards. */
static void train_and_generate(refit_executor* executor, const refit_plan* plan, int32_t rank,
                               engine* served) {
  int32_t count = 0;
  shard* shards = list_shards(plan, &count);
  int generates = 0;
  for (int32_t s = 0; s < count; ++s) {
    shards[s].data = malloc((size_t)shards[s].bytes);
    if (shards[s].data == NULL) exit(1);
    bind_shard(executor, &shards[s]);
    generates |= shards[s].side == REFIT_GEN;
  }
  check(refit_executor_prepare(executor), "prepare");
  for (int64_t version = 1; version <= 3; ++version) {
    for (int32_t s = 0; s < count; ++s) { /* the training step */
      if (shards[s].side == REFIT_TRAIN) make_weights(&shards[s], version, shards[s].data);
    }
    check(refit_executor_run(executor, version, NULL), "refit");
    for (int32_t s = 0; s < count; ++s) { /* the generation */
      if (shards[s].side == REFIT_GEN) check_weights(&shards[s], version, rank, shards[s].data);
    }
    if (generates && (!served->serving || served->version != version)) {
      fprintf(stderr, "rank %d: hooks were not called\n", (int)rank);
      exit(1);
    }
  }
  for (int32_t s = 0; s < count; ++s) free(shards[s].data);
  free(shards);
}

static void print_state(refit_executor* executor) {
  refit_state state = {.size = sizeof state};
  check(refit_executor_state(executor, &state), "state");
  printf("version %lld, %lld bytes received, set up in %.3f ms, refit in %.3f ms\n",
         (long long)state.version, (long long)state.bytes_received, 1e3 * state.setup_s,
         1e3 * state.refit_s);
}

#endif
