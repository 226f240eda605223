// Counting what differs, and numbers that look random.
#pragma once

#include <cstdint>

struct Mismatches {
  unsigned long long compared;
  unsigned long long differing;
  unsigned input, result, expected;  // one example
};

__device__ inline unsigned long long first_index() {
  return blockIdx.x * static_cast<unsigned long long>(blockDim.x) + threadIdx.x;
}

__device__ inline unsigned long long index_step() {
  return gridDim.x * static_cast<unsigned long long>(blockDim.x);
}

// A bijection of 32 bits.
__host__ __device__ inline unsigned mix(unsigned x) {
  x ^= x >> 16;
  x *= 0x7feb352du;
  x ^= x >> 15;
  x *= 0x846ca68bu;
  return x ^ x >> 16;
}

// 2^n for n from -126 to 127.
__device__ inline float exp2f_exact(int n) { return __uint_as_float((n + 127) << 23); }

// What a thread has compared; added up when it is done.
class Check {
 public:
  __device__ explicit Check(Mismatches* out) : out_(out) {}
  __device__ ~Check() {
    if (compared_ != 0) atomicAdd(&out_->compared, compared_);
    if (differing_ != 0) atomicAdd(&out_->differing, differing_);
  }
  __device__ void expect(bool same, unsigned input, unsigned result, unsigned expected) {
    ++compared_;
    if (same) return;
    ++differing_;
    out_->input = input;
    out_->result = result;
    out_->expected = expected;
  }
  __device__ void expect(unsigned input, unsigned result, unsigned expected) {
    expect(result == expected, input, result, expected);
  }

 private:
  Mismatches* out_;
  unsigned long long compared_ = 0, differing_ = 0;
};
