#!/bin/sh
# Build one of the programs of this folder against the installed PyTorch:
#
#     PYTHON=python3 CXX=g++ sh build.sh call_operators.cpp call_operators
#
# Python is asked for PyTorch's folder and no more. No CUDA toolkit is needed, and nothing of fp4aot.
set -eu
torch=$("${PYTHON:-python3}" -c 'import importlib.util as i; print(i.find_spec("torch").submodule_search_locations[0])')
# --no-as-needed: libtorch.so brings the CUDA half of PyTorch, where there is one.
exec "${CXX:-g++}" -std=c++20 -O1 -Wall -Wextra -Werror -isystem "$torch/include" \
  "$(dirname "$0")/$1" -o "$2" -L"$torch/lib" "-Wl,-rpath,$torch/lib" \
  -Wl,--no-as-needed -ltorch -ltorch_cpu -lc10 -ldl
