// Writes the small plans that tests of other languages read: make_plan small|pair FILE.

#include <cstdio>
#include <string>

#include "base/error.h"
#include "plans/check.h"
#include "plans/plan_io.h"
#include "tests/exec/test_plans.h"

namespace {

using namespace refit;

Plan make_plan(const std::string& name) {
  if (name == "pair") {  // of c_api_test.c
    testing::PlanMaker maker(2, 1);
    const Dims shape{8, 6}, flat{4};
    maker.add_tensor("w", shape, Dtype::kBf16, testing::replicate(shape, 0, 1),
                     testing::replicate(shape, 1, 1));
    maker.add_tensor("b", flat, Dtype::kBf16, testing::replicate(flat, 0, 1),
                     testing::replicate(flat, 1, 1));
    maker.add_tensor("frozen", flat, Dtype::kFp32, testing::replicate(flat, 0, 1),
                     testing::replicate(flat, 1, 1));
    maker.add_direct_transfers();
    return maker.finish();
  }
  testing::PlanMaker maker(4, 2);
  const Dims shape{64, 48}, cube{6, 10, 8};
  maker.add_tensor("w", shape, Dtype::kBf16, testing::split(shape, 0, 0, 2),
                   testing::split(shape, 1, 2, 2));
  maker.add_tensor("experts", cube, Dtype::kFp32, testing::split(cube, 1, 0, 2),
                   testing::split(cube, 0, 1, 3));
  maker.add_direct_transfers();
  return maker.finish();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const Plan plan = make_plan(argv[1]);
  for (const Fault& fault : check(plan)) {
    std::fprintf(stderr, "%s\n", print_fault(fault).c_str());
    return 1;
  }
  save_plan(plan, argv[2]);
  return 0;
}
