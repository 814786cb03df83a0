// What the protocols ask of the machine: sized loads and stores, barriers of a block, the clock, conversions.
// tests/algorithms/cuda/emulator.h offers the same names on a CPU, so that the protocols run there too.
//
// Memory that peers touch is read and written by relaxed system-scope accesses only: they bypass the L1 cache, and
// `volatile` keeps their order in the program. Nothing here assumes that more than 8 bytes arrive together.

typedef unsigned char u8;
typedef unsigned int u32;
typedef unsigned long long u64;

struct __align__(16) Vec {
  u32 w[4];
};

#ifndef EMULATED
#define DI __device__ __forceinline__

#ifndef WITHOUT
#define WITHOUT 0
#endif
#if WITHOUT == 1  // RELAXED_POLLS: see common.cuh
#define POLL "ld.acquire.sys"
#else
#define POLL "ld.relaxed.sys"
#endif

DI u32 thread() { return threadIdx.x; }
DI u32 threads() { return blockDim.x; }
DI void block_sync() { __syncthreads(); }
DI void warp_sync() { __syncwarp(); }
DI bool block_or(bool yes) { return __syncthreads_or(yes); }

DI u64 clock_ns() {
  u64 now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  return now;
}

// Loads `v` where `yes`, else leaves it alone: predicated, so that all loads of a poll are in flight together.
DI void get_vec_if(Vec& v, u64 at, u32 yes) {
  asm volatile(
      "{ .reg .pred p; setp.ne.u32 p, %5, 0; @p " POLL ".global.v4.u32 {%0,%1,%2,%3}, [%4]; }"
      : "+r"(v.w[0]), "+r"(v.w[1]), "+r"(v.w[2]), "+r"(v.w[3])
      : "l"(at), "r"(yes));
}

DI Vec get_vec(u64 at) {
  Vec v;
  asm volatile("ld.relaxed.sys.global.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.w[0]), "=r"(v.w[1]), "=r"(v.w[2]), "=r"(v.w[3])
               : "l"(at));
  return v;
}

DI void put_vec(u64 at, const Vec& v) {
  asm volatile("st.relaxed.sys.global.v4.u32 [%0], {%1,%2,%3,%4};" ::"l"(at), "r"(v.w[0]), "r"(v.w[1]), "r"(v.w[2]),
               "r"(v.w[3])
               : "memory");
}

// Two 8-byte words, each indivisible: what a pair of flagged words needs.
DI void get_pair_if(u64& a, u64& b, u64 at, u32 yes) {
  asm volatile("{ .reg .pred p; setp.ne.u32 p, %3, 0; @p ld.relaxed.sys.global.v2.u64 {%0,%1}, [%2]; }"
               : "+l"(a), "+l"(b)
               : "l"(at), "r"(yes));
}

DI void put_pair(u64 at, u64 a, u64 b) {
  asm volatile("st.relaxed.sys.global.v2.u64 [%0], {%1,%2};" ::"l"(at), "l"(a), "l"(b) : "memory");
}

DI u64 get_u64(u64 at) {
  u64 v;
  asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(at) : "memory");
  return v;
}

DI void put_u64(u64 at, u64 v) { asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(at), "l"(v) : "memory"); }
DI void put_u32(u64 at, u32 v) { asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(at), "r"(v) : "memory"); }

// Own memory only: remote atomics are no part of PCIe's promises.
DI void add_u64(u64 at, u64 v) { asm volatile("red.relaxed.gpu.global.add.u64 [%0], %1;" ::"l"(at), "l"(v) : "memory"); }

DI bool claim(u64 at) { return atomicCAS((u32*)at, 0u, 1u) == 0u; }
DI void fence_system() { asm volatile("fence.acq_rel.sys;" ::: "memory"); }

DI Vec load_plain(u64 at) {
  Vec v;
  asm volatile("ld.global.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.w[0]), "=r"(v.w[1]), "=r"(v.w[2]), "=r"(v.w[3])
               : "l"(at));
  return v;
}
DI u32 load_plain_u32(u64 at) { return *(const u32*)at; }
DI u32 load_plain_u16(u64 at) { return *(const unsigned short*)at; }
DI void store_plain(u64 at, const Vec& v) {
  asm volatile("st.global.v4.u32 [%0], {%1,%2,%3,%4};" ::"l"(at), "r"(v.w[0]), "r"(v.w[1]), "r"(v.w[2]), "r"(v.w[3])
               : "memory");
}
DI void store_plain_u32(u64 at, u32 v) { *(u32*)at = v; }
DI void store_plain_u16(u64 at, u32 v) { *(unsigned short*)at = (unsigned short)v; }

// Sum over a block, the same bits in every thread; the order depends on the number of threads alone.
DI float block_sum(float v) {
  __shared__ float parts[32];
#pragma unroll
  for (u32 k = 16; k != 0; k /= 2) v += __shfl_xor_sync(0xffffffffu, v, k);
  if (thread() % 32 == 0) parts[thread() / 32] = v;
  __syncthreads();
  v = 0;
  for (u32 k = 0; k < threads() / 32; ++k) v += parts[k];
  __syncthreads();
  return v;
}

DI float inverse_root(float v) { return rsqrtf(v); }
DI float as_float(u32 v) { return __uint_as_float(v); }
DI u32 as_u32(float v) { return __float_as_uint(v); }

DI float half_to_float(u32 bits) {
  float f;
  asm("{ .reg .b16 h; cvt.u16.u32 h, %1; cvt.f32.f16 %0, h; }" : "=f"(f) : "r"(bits));
  return f;
}

DI u32 pack_half(float low, float high) {
  u32 v;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(v) : "f"(high), "f"(low));
  return v;
}

DI u32 pack_bfloat(float low, float high) {
  u32 v;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(v) : "f"(high), "f"(low));
  return v;
}

DI void start_early() {
#if PDL && __CUDA_ARCH__ >= 900
  // Wait for the kernel before us to end and be flushed, then let the one behind us take its place on the GPU.
  asm volatile("griddepcontrol.wait;" ::: "memory");
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// A test makes ranks and blocks drift apart at these points.
DI void maybe_delay() {}
#endif
