#include "tests/exec/nccl_job.h"

#include <gtest/gtest.h>

#include <thread>

#include "base/error.h"
#include "exec/executor.h"
#include "exec/verify.h"
#include "tests/exec/test_plans.h"
#include "tests/sim/search/small_fabric.h"

namespace refit::testing {

std::vector<std::string> replay(const Plan& plan, FakeCluster& cluster, const Job& job) {
  const auto world = static_cast<int32_t>(plan.ranks.size());
  Gathering gathering(world);
  std::vector<std::string> errors(plan.ranks.size());
  std::vector<std::jthread> threads;
  for (int32_t rank = 0; rank < world; ++rank) {
    threads.emplace_back([&, rank] {
      GatheringBootstrap bootstrap(gathering, rank);
      try {
        GpuApi& gpu = cluster.gpu(rank);
        GpuApi::Comm parent = nullptr;
        if (!job.with_bootstrap) {
          parent = gpu.make_comm("parent", world, rank, {1, 0});
          while (!gpu.is_settled(parent)) std::this_thread::yield();
        }
        {
          NcclBackend backend(gpu, plan, rank, job.with_bootstrap ? &bootstrap : nullptr, parent,
                              job.options);
          const Executor::Buffers buffers = allocate_buffers(plan, backend);
          Executor executor(plan, backend, buffers);
          for (int32_t iteration = 0; iteration < job.iterations; ++iteration) {
            fill_train(plan, rank, buffers, iteration);
            poison_gen(plan, rank, buffers, iteration);
            try {
              if (job.before) job.before(rank, iteration, bootstrap);
            } catch (const std::exception& error) {
              backend.abort(error.what());
              throw;
            }
            executor.run();
            verify_gen(plan, rank, buffers, iteration);
          }
          if (job.after) job.after(rank, backend);
        }
        if (parent != nullptr) gpu.destroy_comm(parent);
      } catch (const std::exception& error) {
        errors[static_cast<size_t>(rank)] = error.what();
        bootstrap.publish_failure(error.what());
      }
      cluster.leave(rank);
    });
  }
  threads.clear();
  return errors;
}

void expect_no_errors(const std::vector<std::string>& errors) {
  for (size_t rank = 0; rank < errors.size(); ++rank) {
    ASSERT_EQ(errors[rank], "") << "rank " << rank;
  }
}

Problem small_problem(const std::string& train, const std::string& gen) {
  const Model model = parse_model(
      R"({"model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"], "hidden_size": 32,
          "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 4,
          "head_dim": 8, "intermediate_size": 64, "moe_intermediate_size": 16,
          "num_experts": 8, "num_experts_per_tok": 2, "decoder_sparse_step": 1,
          "mlp_only_layers": [], "vocab_size": 64, "tie_word_embeddings": false,
          "torch_dtype": "bfloat16"})",
      "small model");
  return make_small_problem(model, train, gen);
}

Plan plain_plan(int32_t gens) {
  PlanMaker maker(2 + gens, 2);
  const Dims shape{24, 48};
  maker.add_tensor("w", shape, Dtype::kBf16, split(shape, 0, 0, 2), split(shape, 1, 2, gens));
  maker.add_direct_transfers();
  return maker.finish();
}

}  // namespace refit::testing
