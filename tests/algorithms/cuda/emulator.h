// The names of primitives.cuh on a CPU: every thread of every rank is a fiber, and a seeded scheduler switches between
// them before memory accesses, while they wait and at barriers. Vectors go word by word with switches between the words,
// so that they tear. Memory is sequentially consistent: a missing fence does not show here.

#include <ucontext.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <vector>

#define EMULATED 1
#define DI static inline
#define __align__(n) alignas(n)

struct Barrier {
  unsigned arrived = 0, generation = 0;
  bool any = false, result = false;
};
struct Fiber {
  ucontext_t context;
  unsigned rank, block, thread;
  bool done = false;
  std::vector<char> stack;
};
static std::vector<Fiber> fibers;
static std::vector<Barrier> barriers, warps;  // [rank * blocks + block], and 16 per block
static ucontext_t scheduler;
static Fiber* current;
static unsigned per_block, blocks_of_rank, favoured;
static std::uint64_t random_state;

static std::uint32_t draw() {
  random_state ^= random_state << 13, random_state ^= random_state >> 7, random_state ^= random_state << 17;
  return (std::uint32_t)(random_state >> 16);
}
static void leave() { swapcontext(&current->context, &scheduler); }
static void maybe_switch() {
  if (draw() % 16 == 0) leave();
}

typedef unsigned char u8;
typedef unsigned int u32;
typedef unsigned long long u64;
struct alignas(16) Vec {
  u32 w[4];
};

DI u32 thread() { return current->thread; }
DI u32 threads() { return per_block; }
DI bool block_or(bool yes) {
  Barrier& b = barriers[current->rank * blocks_of_rank + current->block];
  const unsigned generation = b.generation;
  b.any |= yes;
  if (++b.arrived == per_block) {
    b.result = b.any, b.any = false, b.arrived = 0, ++b.generation;
  } else {
    while (b.generation == generation) leave();
  }
  return b.result;
}
DI void block_sync() { block_or(false); }
static std::vector<std::vector<float>> addends;  // [rank * blocks + block][thread]
DI float block_sum(float v) {
  std::vector<float>& values = addends[current->rank * blocks_of_rank + current->block];
  values[current->thread] = v;
  block_sync();
  float sum = 0;
  for (const float value : values) sum += value;
  block_sync();
  return sum;
}
DI float inverse_root(float v) { return 1 / std::sqrt(v); }
DI void warp_sync() {  // of up to 32 threads
  const unsigned warp = current->thread / 32, left = per_block - warp * 32, size = left < 32 ? left : 32;
  Barrier& b = warps[(current->rank * blocks_of_rank + current->block) * 16 + warp];
  const unsigned generation = b.generation;
  if (++b.arrived == size) {
    b.arrived = 0, ++b.generation;
  } else {
    while (b.generation == generation) leave();
  }
}
DI u64 clock_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (u64)t.tv_sec * 1000000000u + (u64)t.tv_nsec;
}
DI void get_vec_if(Vec& v, u64 at, u32 yes) {
  if (!yes) return;
  for (int k = 0; k < 4; ++k) maybe_switch(), v.w[k] = ((volatile u32*)at)[k];
}
DI Vec get_vec(u64 at) {
  Vec v;
  get_vec_if(v, at, true);
  return v;
}
DI void put_vec(u64 at, const Vec& v) {
  const unsigned from = draw() % 4;
  for (unsigned k = 0; k < 4; ++k) maybe_switch(), ((volatile u32*)at)[(from + k) % 4] = v.w[(from + k) % 4];
}
DI void get_pair_if(u64& a, u64& b, u64 at, u32 yes) {
  if (!yes) return;
  maybe_switch(), a = ((volatile u64*)at)[0], maybe_switch(), b = ((volatile u64*)at)[1];
}
DI void put_pair(u64 at, u64 a, u64 b) {
  maybe_switch(), ((volatile u64*)at)[0] = a, maybe_switch(), ((volatile u64*)at)[1] = b;
}
DI u64 get_u64(u64 at) { return maybe_switch(), *(volatile u64*)at; }
DI void put_u64(u64 at, u64 v) { maybe_switch(), *(volatile u64*)at = v; }
DI void put_u32(u64 at, u32 v) { maybe_switch(), *(volatile u32*)at = v; }
DI void add_u64(u64 at, u64 v) { maybe_switch(), *(volatile u64*)at = *(volatile u64*)at + v; }
DI bool claim(u64 at) {
  const bool first = *(volatile u32*)at == 0;
  *(volatile u32*)at = 1;
  return first;
}
DI void fence_system() {}
DI Vec load_plain(u64 at) { return maybe_switch(), *(Vec*)at; }
DI u32 load_plain_u32(u64 at) { return *(u32*)at; }
DI u32 load_plain_u16(u64 at) { return *(std::uint16_t*)at; }
DI void store_plain(u64 at, const Vec& v) { maybe_switch(), *(Vec*)at = v; }
DI void store_plain_u32(u64 at, u32 v) { *(u32*)at = v; }
DI void store_plain_u16(u64 at, u32 v) { *(std::uint16_t*)at = (std::uint16_t)v; }
DI void maybe_delay() { leave(); }

DI float as_float(u32 v) { float f; return std::memcpy(&f, &v, 4), f; }
DI u32 as_u32(float v) { u32 u; return std::memcpy(&u, &v, 4), u; }
DI u32 bfloat(float v) { const u32 u = as_u32(v); return (u + 0x7fff + ((u >> 16) & 1)) >> 16; }
DI u32 pack_bfloat(float low, float high) { return bfloat(low) | bfloat(high) << 16; }
DI float half_to_float(u32 h) {
  const u32 sign = (h & 0x8000u) << 16, exponent = (h >> 10) & 31, mantissa = h & 1023;
  if (exponent == 31) return as_float(sign | 0x7f800000u | mantissa << 13);
  if (exponent == 0) return (sign ? -1.0f : 1.0f) * (float)mantissa / 16777216.0f;
  return as_float(sign | (exponent + 112) << 23 | mantissa << 13);
}
DI u32 half(float v) {  // normal numbers and zero: what the emulated tests use
  const u32 u = as_u32(v), sign = (u >> 16) & 0x8000u, rounded = (u & 0x7fffffffu) + 0xfff + ((u >> 13) & 1);
  return (u & 0x7fffffffu) == 0 ? sign : sign | ((rounded >> 13) - (112 << 10));
}
DI u32 pack_half(float low, float high) { return half(low) | half(high) << 16; }
