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

// What the kernel does: numbers of KINDS in designs.py.
#define ALL_REDUCE 0
#define ALL_GATHER 1
#define REDUCE_SCATTER 2
#define ALL_TO_ALL 3
#define BARRIER 4
#define FUSED_KIND 5

DI int sum_of(u32 seed, u32 i) {
  int sum = 0;
  for (u32 k = 0; k < W; ++k) sum += value(seed, k, i);
  return sum;
}

DI u32 inputs(const Step& s) { return s.bytes / SIZE / (KIND == ALL_GATHER || KIND == BARRIER ? W : 1); }
DI u32 outputs(const Step& s) { return s.bytes / SIZE / (KIND == REDUCE_SCATTER ? W : 1); }

// Element i of what this rank should hold; fused: of residual_out, whose residual is rank W's value.
DI int expected(const Step& s, u32 seed, u32 rank, u32 i) {
  const u32 part = s.bytes / SIZE / W;
  if (KIND == ALL_GATHER || KIND == BARRIER) return value(seed, i / part, i % part);
  if (KIND == ALL_TO_ALL) return value(seed, i / part, rank * part + i % part);
  if (KIND == REDUCE_SCATTER) return sum_of(seed, rank * part + i);
  return sum_of(seed, i) + (KIND == FUSED_KIND ? value(seed, W, i) : 0);
}

DI float element_value(u32 v) {
#if DTYPE == BFLOAT16
  return as_float(v << 16);
#elif DTYPE == FLOAT16
  return half_to_float(v);
#else
  return as_float(v);
#endif
}

DI void note(u64 wrong, u32 call, u32 i, u32 found, u32 wanted) {
  if (claim(wrong + 8)) put_u32(wrong + 12, call + 1), put_u32(wrong + 16, i), put_u32(wrong + 20, found), put_u32(wrong + 24, wanted);
  add_u64(wrong, 1);
}

// Checks every element. `wrong` counts: elements off, then the first of them as call + 1, element, found, expected; gives
// how many this thread has looked at.
DI u32 check_call(const Args& a, const Step& s, u32 call, u32 first, u32 step, u64 wrong) {
  u32 seen = 0;
  const u64 out = KIND == FUSED_KIND ? a.residual_out : a.out;
  for (u32 i = first; i < outputs(s); i += step, ++seen) {
    const int want = expected(s, s.seed + call, a.rank, i);
    const u32 found = read_element(out + i * SIZE);
    const bool zero_sign = want == 0 && DTYPE != INT32 && (found << (32 - 8 * SIZE)) == 0x80000000u;
    if (found != element(want) && !zero_sign) note(wrong, call, i, found, element(want));
  }
  return seen;
}

// The normalised rows, a row per thread: within 1/128, which is wider than any rounding and narrower than what a wrong
// element makes.
DI void check_rows(const Args& a, const Step& s, u32 call, u32 first, u32 step, u64 wrong) {
  for (u32 row = first; row < outputs(s) / a.hidden; row += step) {
    float squares = 0;
    for (u32 j = 0; j < a.hidden; ++j) {
      const float v = (float)expected(s, s.seed + call, a.rank, row * a.hidden + j);
      squares += v * v;
    }
    const float scale = inverse_root(squares / (float)a.hidden + a.epsilon);
    for (u32 j = 0; j < a.hidden; ++j) {
      const u32 i = row * a.hidden + j, bits = read_element(a.out + i * SIZE);
      const float weight = (float)value(s.seed + call, W + 1, j);
      const float want = (float)expected(s, s.seed + call, a.rank, i) * scale * weight;
      const float off = element_value(bits) - want, room = (want < 0 ? -want : want) / 128 + 0.001f;
      if (!(off <= room && off >= -room)) note(wrong, call, i, bits, as_u32(want));
    }
  }
}

DI void fill_call(const Args& a, const Step& s, u32 call, u32 first, u32 step) {
  for (u32 i = first; i < s.bytes / SIZE; i += step) {
    if (i < inputs(s)) write_element(a.in + i * SIZE, element(value(s.seed + call, a.rank, i)));
    write_element(a.out + i * SIZE, 0xffffffffu);
    if (KIND != FUSED_KIND) continue;
    write_element(a.residual + i * SIZE, element(value(s.seed + call, W, i)));
    write_element(a.residual_out + i * SIZE, 0xffffffffu);
    if (i < a.hidden) write_element(a.weight + i * SIZE, element(value(s.seed + call, W + 1, i)));
  }
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
    const u64 slot = s.out_offset - s.in_offset;  // behind input and output: residual, weight, residual_out
    a.residual = a.out + slot, a.weight = a.out + 2 * slot, a.residual_out = a.out + 3 * slot;
    if (fill) fill_call(a, s, call, first, step);
    rank_sync(counter, ++met * blocks);
    pause(s, call, a.rank, block);
    if (block < s.blocks) {
      Ctx c = context(&a, block, s.blocks);
      run(c);
    }
    rank_sync(counter, ++met * blocks);
    if (fill) seen += check_call(a, s, call, first, step, wrong);
    if (fill && KIND == FUSED_KIND) check_rows(a, s, call, first, step, wrong);
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
