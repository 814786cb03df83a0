// Virtual ranks: one cooperative kernel whose groups of blocks play the ranks, for tests on one GPU. The calls of a rank
// run one after the other, as on a stream; nothing holds the ranks together but the collective itself.

struct Step {
  u32 bytes, blocks;   // of this call; at most the blocks that a rank has
  u32 delay_ns, seed;  // every block waits a random time up to delay_ns before the call
  u64 in_offset, out_offset;
};

DI u32 scrambled(u32 x) {
  x ^= x >> 16, x *= 0x7feb352du, x ^= x >> 15, x *= 0x846ca68bu;
  return x ^ (x >> 16);
}

// Integers from -8 to 8, so that sums over 16 ranks are exact in every element type.
DI int value(u32 seed, u32 rank, u32 i) { return (int)(scrambled(seed ^ scrambled(rank * 0x9e3779b9u + i)) % 17) - 8; }

constexpr u32 SIZE = 4 / PER_WORD;

DI u32 element(int v) {
#if DTYPE == BFLOAT16
  return as_u32((float)v) >> 16;
#elif DTYPE == FLOAT16
  return pack_half((float)v, 0.0f) & 0xffffu;
#elif DTYPE == FLOAT32
  return as_u32((float)v);
#else
  return (u32)v;
#endif
}

DI u32 read_element(u64 at) { return SIZE == 2 ? load_plain_u16(at) : load_plain_u32(at); }

DI void write_element(u64 at, u32 v) {
  if (SIZE == 2) {
    store_plain_u16(at, v);
  } else {
    store_plain_u32(at, v);
  }
}

// All blocks of one rank meet: what the end of a kernel is to a stream.
DI void rank_sync(u64 counter, u32 target) {
  block_sync();
  if (thread() == 0) {
    fence_system();
    add_u64(counter, 1);
    while (get_u64(counter) < target) maybe_delay();
    fence_system();
  }
  block_sync();
}

DI void pause(const Step& s, u32 call, u32 rank, u32 block) {
  if (s.delay_ns == 0) return;
  const u64 until = clock_ns() + scrambled(s.seed ^ (call * 31 + rank * 7 + block * 3 + 1)) % s.delay_ns;
  while (clock_ns() < until) maybe_delay();
}

// Fills the input, poisons the output, calls, checks every element. `wrong` counts: elements off, then the first of them
// as call + 1, element, found, expected; gives how many this thread has looked at.
DI u32 check_call(const Args& a, const Step& s, u32 call, u32 first, u32 step, u64 wrong) {
  u32 seen = 0;
  for (u32 i = first; i < s.bytes / SIZE; i += step, ++seen) {
    int sum = 0;
    for (u32 k = 0; k < W; ++k) sum += value(s.seed + call, k, i);
    const u32 found = read_element(a.out + i * SIZE);
    const bool zero_sign = sum == 0 && DTYPE != INT32 && (found << (32 - 8 * SIZE)) == 0x80000000u;
    if (found == element(sum) || zero_sign) continue;
    if (claim(wrong + 8)) put_u32(wrong + 12, call + 1), put_u32(wrong + 16, i), put_u32(wrong + 20, found), put_u32(wrong + 24, element(sum));
    add_u64(wrong, 1);
  }
  return seen;
}

template <class Run>
DI void play(const Args& given, const Step* steps, u32 count, u32 block, u32 blocks, u64 counter, u64 wrong, bool fill, Run run) {
  Args a = given;
  const u32 first = block * threads() + thread(), step = blocks * threads();
  u32 met = 0;
  u64 seen = 0;
  for (u32 call = 0; call < count; ++call) {
    const Step s = steps[call];
    a.bytes = s.bytes, a.in_offset = s.in_offset;
    a.in = a.base[a.rank] + s.in_offset, a.out = a.base[a.rank] + s.out_offset;
    for (u32 i = first; fill && i < s.bytes / SIZE; i += step) {
      write_element(a.in + i * SIZE, element(value(s.seed + call, a.rank, i)));
      write_element(a.out + i * SIZE, 0xffffffffu);
    }
    rank_sync(counter, ++met * blocks);
    pause(s, call, a.rank, block);
    if (block < s.blocks) {
      Ctx c = context(&a, block, s.blocks);
      run(c);
    }
    rank_sync(counter, ++met * blocks);
    if (fill) seen += check_call(a, s, call, first, step, wrong);
    rank_sync(counter, ++met * blocks);
  }
  add_u64(wrong + 32, seen);  // so that a kernel that checks nothing is no kernel without faults
}

#ifndef EMULATED
extern "C" __global__ void __launch_bounds__(MAX_THREADS, 1)
    virtual_ranks(const Args* args, const Step* steps, u32 count, u32 blocks, u64 counters, u64 wrong, u32 fill,
                  u32 absent) {
  const u32 rank = blockIdx.x / blocks;
  if (rank == absent) return;  // plays dead: the others' deadlines must end the call
  auto run = [](Ctx& c) { KERNEL(c); };
  play(args[rank], steps, count, blockIdx.x % blocks, blocks, counters + rank * 128, wrong + rank * 128, fill != 0, run);
}
#endif
