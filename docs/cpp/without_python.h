// Loads fp4aot's library into a C++ program, and shows that no Python came with it.
#pragma once

#include <dlfcn.h>

#include <stdexcept>

// The library registers its operators with PyTorch's dispatcher when it is loaded, and stays
// loaded: never close it.
inline void load_operators(const char* path) {
  if (dlopen(path, RTLD_NOW | RTLD_GLOBAL) == nullptr) throw std::runtime_error(dlerror());
}

// Whether anything in this process, fp4aot's library and what it needs included, brought Python.
inline const char* python_in_process() {
  return dlsym(RTLD_DEFAULT, "Py_IsInitialized") == nullptr ? "no" : "yes";
}
