/* Runs the perceptron of `benchmarks.aot` that AOTInductor packed, from C++ on one thread, and says
   what `aot_measure.h` says.

   c++ -std=c++20 -IHEADERS aot_inductor.cpp -ltorch -ltorch_cpu -lc10; ./a.out mlp.pt2 SECONDS */
#include <cstdlib>
#include <vector>

#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>
#include <ATen/ops/zeros.h>

#include "aot_measure.h"

struct run {
    torch::inductor::AOTIModelPackageLoader loader;
    std::vector<at::Tensor> inputs;
};

static void call(void *given) {
    run *all = static_cast<run *>(given);
    all->loader.run(all->inputs);
}

int main(int count, char **given) {
    double began = now();
    if (count < 3) return 2;
    at::set_num_threads(1);
    c10::InferenceMode mode;
    run all{torch::inductor::AOTIModelPackageLoader(given[1], "model", true), {at::zeros({1, 256})}};
    call(&all);
    measure(now() - began, std::atof(given[2]), call, &all);
    return 0;
}
