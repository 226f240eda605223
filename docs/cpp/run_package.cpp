// Runs an AOTInductor package that calls fp4aot's operators, with no Python in the process:
//
//     run_package PATH/TO/libfp4aot.so PACKAGE.pt2 INPUT.pt OUTPUT.pt
//
// INPUT.pt is one tensor written by torch.save, OUTPUT.pt is for torch.load.
#include <c10/core/InferenceMode.h>
#include <c10/util/Exception.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>
#include <torch/csrc/jit/serialization/pickle.h>

#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "without_python.h"

namespace {

at::Tensor read_tensor(const char* path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error(std::string("cannot read ") + path);
  const std::vector<char> bytes((std::istreambuf_iterator<char>(file)), {});
  return torch::jit::pickle_load(bytes).toTensor();
}

void write_tensor(const at::Tensor& tensor, const char* path) {
  const std::vector<char> bytes = torch::jit::pickle_save(tensor);
  std::ofstream file(path, std::ios::binary);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  if (!file.flush()) throw std::runtime_error(std::string("cannot write ") + path);
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 5) {
    throw std::runtime_error(
        "usage: run_package PATH/TO/libfp4aot.so PACKAGE.pt2 INPUT.pt OUTPUT.pt");
  }
  load_operators(argv[1]);  // before the package, which looks its operators up when it is loaded
  const c10::InferenceMode no_gradients;
  torch::inductor::AOTIModelPackageLoader package(argv[2]);
  const at::Tensor output = package.run({read_tensor(argv[3])}).at(0);
  write_tensor(output.cpu(), argv[4]);
  std::printf("%-28s %s\n", "Python in this process", python_in_process());
  return 0;
} catch (const c10::Error& error) {
  std::fprintf(stderr, "%s\n", error.what_without_backtrace());
  return 2;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 2;
}
