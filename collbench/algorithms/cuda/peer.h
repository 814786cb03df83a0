// What a wrapper around somebody else's kernels is told: one record per runner, filled by peer_library.Setup.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

// W: world size. DTYPE: 0 bfloat16, 1 float16, 2 float32. Both are given on the compiler's command line.
#if DTYPE == 0
using Element = __nv_bfloat16;
#elif DTYPE == 1
using Element = __half;
#else
using Element = float;
#endif

struct Setup {
  uint64_t slab[8];     // every rank's work space, as mapped here
  uint64_t table;       // this rank's 8 addresses per slot: where every rank's input of that slot stands
  uint64_t input;       // this rank's input of slot 0
  uint64_t output;      // this rank's output of slot 0
  uint64_t stride;      // bytes from one slot to the next
  int64_t count;        // elements of a message
  int32_t rank;
  int32_t kernel;       // a number that the wrapper knows
  int32_t blocks;
  int32_t threads;
  int32_t max_blocks;   // for which the work space was made
  int32_t spare;
};

extern "C" size_t peer_setup_bytes() { return sizeof(Setup); }
extern "C" const char* peer_error(int code) { return cudaGetErrorName(static_cast<cudaError_t>(code)); }

template <typename T>
static T* at(uint64_t base, uint64_t stride, int64_t slot) {
  return reinterpret_cast<T*>(base + stride * static_cast<uint64_t>(slot));
}
