// Arguments, the call's epoch, waits with a deadline, sums in rank order. Needs W (world size), DTYPE and primitives.cuh.
//
// Lemma that all reuse of buffers rests on: a rank that has left call e+1 knows that every rank has entered call e+1,
// hence has left call e (a rank's calls run one after the other on its stream, and the end of a kernel flushes it).
// So what peers wrote for call e may be overwritten from call e+2 on, and two sets of buffers suffice.

#ifndef BREAK
#define BREAK 0  // a test build breaks one rule of safety: see Rule in harness.py
#endif
#ifndef PDL
#define PDL 0
#endif

// Values of DTYPE and BREAK: macros, since the preprocessor compares them.
#define BFLOAT16 0
#define FLOAT16 1
#define FLOAT32 2
#define INT32 3
#define NO_REARM 1
#define ONE_SET 2
#define ONE_WORD_CHECK 3
#define NO_END_BARRIER 4
#define NO_START_BARRIER 5
#define BLOCK_EPOCH 6
#define NO_FENCE 7

// Values of WITHOUT: a build that leaves out one thing that makes the one-stage kernels fast, to measure what it is worth.
#ifndef WITHOUT
#define WITHOUT 0
#endif
#define RELAXED_POLLS 1    // polls acquire instead
#define LOADS_TOGETHER 2   // peers are polled one after the other
#define EARLY_LOAD 3       // the input is loaded only when the epoch is known
#define OWN_IN_REGISTER 4  // a rank's own vectors go through memory too
#define LATE_REARM 5       // buffers are emptied before the data is sent (pull) or summed (push)

constexpr u32 MAX_RANKS = 16;
constexpr u32 MAX_BLOCKS = 64;
constexpr u32 ALL = (1u << W) - 1;
constexpr u32 MAX_THREADS = W > 8 ? 256 : 512;  // so that registers suffice

// Every rank's shared region starts with this control block; offsets in bytes, mirrored in arguments.py.
constexpr u32 AT_COUNT = 0, AT_ABORT = 8, AT_SIZES = 16, AT_ERROR = 64, AT_BLOCK_EPOCH = 2048, AT_START = 4096, AT_END = 12288;

struct Args {
  u64 base[MAX_RANKS];  // shared region of every rank as mapped here
  u64 in, out;          // this call's input and output, 16-byte aligned
  u64 in_offset;        // of the input in the shared region, the same on every rank (zero-copy kernels)
  u64 data;             // offset of the protocol's buffers in the shared region
  u64 deadline_ns;
  u32 rank, bytes;
  u32 cap;              // 16-byte vectors (push_flags: 8-byte units) that one slot holds
  u32 members, owners_mask, partners;  // islands: my group, its owners, my chunk's owners in the other groups
  u32 groups, owners, largest;         // islands: groups, owners per group, members of the largest group
  u8 group[MAX_RANKS], index[MAX_RANKS];  // islands: of every rank
  u64 residual, weight, residual_out;     // fused: inputs beside the message, and the output beside the normalised one
  u32 hidden;                             // fused: elements of a row
  float epsilon;                          // fused: added to the mean square
};

struct Ctx {
  const Args* a;
  u64 epoch;
  u32 block, blocks, first, step;  // this thread handles vectors first, first + step, ...
  bool dead;                       // a wait was given up: nothing is waited for any more, and nothing is written out
  u32 tail_at;                     // a last vector that is cut short, stored by store_tail()
  Vec tail;
};

constexpr u32 NONE = 0xffffffffu;

enum Phase { ONE_STAGE = 1, START_BARRIER, END_BARRIER, STAGED, SCATTER, GATHER, MIDDLE_BARRIER, ISLAND_SCATTER, ISLAND_EXCHANGE, ISLAND_GATHER, RING_REDUCE, RING_GATHER, FLAGGED, PART, ENTERED };

#if DTYPE == INT32
typedef u32 Sum;
#else
typedef float Sum;
#endif
#if DTYPE == BFLOAT16 || DTYPE == FLOAT16
constexpr u32 PER_WORD = 2;
constexpr u32 EMPTY = 0x80008000u;  // two times -0.0: the sender turns that pair into +0.0
#else
constexpr u32 PER_WORD = 1;
constexpr u32 EMPTY = 0x80000000u;
#endif
constexpr u32 EMPTY_FLOAT = 0x80000000u;  // in buffers of fp32 partial sums
constexpr u32 LANES = 4 * PER_WORD;       // elements of a vector
constexpr u32 PARTS = PER_WORD;           // vectors of fp32 partial sums per vector of data

DI Ctx context(const Args* a, u32 block, u32 blocks) {
  return Ctx{a, 0, block, blocks, block * threads() + thread(), blocks * threads(), false, NONE, Vec{{0, 0, 0, 0}}};
}

// --- epochs -------------------------------------------------------------------------------------------------------
// `count` = epoch * 65536 + what warps of the present call have added. The warps of one call add 65536 together, each
// after its own read, so that every warp of a call reads the same epoch, whatever the grids of the calls before and
// after; no block waits for another, and the addition is off the critical path.

DI void begin(Ctx& c) {
  u64 count = 0, abort = 0;
  get_pair_if(count, abort, c.a->base[c.a->rank] + AT_COUNT, true);
#if BREAK == BLOCK_EPOCH
  count = get_u64(c.a->base[c.a->rank] + AT_BLOCK_EPOCH + c.block * 8);
#endif
  c.epoch = count >> 16;
  c.dead = abort != 0;
}

DI void advance(const Ctx& c) {  // by all threads, some time after begin()
  warp_sync();
  if (thread() % 32 != 0) return;
  const u64 mine = c.a->base[c.a->rank];
  const u32 warps = (threads() + 31) / 32;
#if BREAK == BLOCK_EPOCH
  add_u64(mine + AT_BLOCK_EPOCH + c.block * 8, thread() == 0 ? 65536 - (warps - 1) : 1);
#endif
  add_u64(mine + AT_COUNT, c.block == 0 && thread() == 0 ? 65536 - (c.blocks * warps - 1) : 1);
}

DI u32 set_of(u64 epoch, u32 sets) {
#if BREAK == ONE_SET
  return 0;
#endif
  return (u32)epoch & (sets - 1);
}

// --- waits --------------------------------------------------------------------------------------------------------

struct Spin {
  u32 turns;
  u64 begun;
};

// Leaves who waited for whom in this rank's error record (the first to come keeps it) and sends every rank home.
DI void report(const Args* a, u64 epoch, u32 block, u32 missing, u32 phase, u32 index, u64 waited) {
  const u64 at = a->base[a->rank] + AT_ERROR;
  if (claim(at)) {
    put_u32(at + 4, phase), put_u32(at + 8, a->rank), put_u32(at + 12, missing), put_u32(at + 16, block);
    put_u32(at + 20, thread()), put_u32(at + 24, index), put_u64(at + 32, epoch), put_u64(at + 40, waited);
  }
  for (u32 k = 0; k < W; ++k) put_u64(a->base[k] + AT_ABORT, a->rank + 1);
}

// True when a wait must end. Looks at the clock and at the abort word once in 1024 turns.
DI bool give_up(Ctx& c, Spin& spin, u32 missing, u32 phase, u32 index) {
  maybe_delay();
  if ((++spin.turns & 1023) != 0) return false;
  const u64 now = clock_ns();
  if (spin.begun == 0) spin.begun = now;
  if (get_u64(c.a->base[c.a->rank] + AT_ABORT) != 0) return c.dead = true;
  if (now - spin.begun < c.a->deadline_ns) return false;
  report(c.a, c.epoch, c.block, missing, phase, index, now - spin.begun);
  return c.dead = true;
}

DI bool arrived(const Vec& v, u32 empty) {
#if BREAK == ONE_WORD_CHECK
  return v.w[0] != empty;
#endif
  return v.w[0] != empty && v.w[1] != empty && v.w[2] != empty && v.w[3] != empty;
}

// Polls vectors at(k) for the bits k of `need` until no word of them is `empty`. `who` names the ranks waited for if
// the bits are not ranks.
template <int N, class At>
DI void take_together(Ctx& c, Vec* r, u32 need, At at, u32 phase, u32 index, u32 empty, u32 who) {
  Spin spin{0, 0};
  while (true) {
#pragma unroll
    for (int k = 0; k < N; ++k) get_vec_if(r[k], at(k), need & (1u << k));
    u32 left = 0;
#pragma unroll
    for (int k = 0; k < N; ++k) left |= arrived(r[k], empty) ? 0 : 1u << k;
    need &= left;
    if (__builtin_expect(need == 0, 1)) break;
    if (c.dead || __builtin_expect(give_up(c, spin, who ? who : need, phase, index), 0)) break;
  }
}

template <int N, class At>
DI void take(Ctx& c, Vec* r, u32 need, At at, u32 phase, u32 index, u32 empty = EMPTY, u32 who = 0) {
#if WITHOUT == LOADS_TOGETHER
#pragma unroll
  for (int k = 0; k < N; ++k) {
    if (need & (1u << k)) take_together<N>(c, r, 1u << k, at, phase, index, empty, who);
  }
#else
  take_together<N>(c, r, need, at, phase, index, empty, who);
#endif
}

// One flag of 8 bytes per block and peer, which holds the epoch: 48 bits of it never wrap.
DI void signal(const Ctx& c, u32 where) {
  const u32 k = thread();
  if (k < W && k != c.a->rank) put_u64(c.a->base[k] + where + (c.block * MAX_RANKS + c.a->rank) * 8, c.epoch);
}

DI void await(Ctx& c, u32 where, u32 phase) {
  const u32 k = thread();
  if (k >= W || k == c.a->rank) return;
  Spin spin{0, 0};
  while (get_u64(c.a->base[c.a->rank] + where + (c.block * MAX_RANKS + k) * 8) < c.epoch) {
    if (c.dead || give_up(c, spin, 1u << k, phase, 0)) break;
  }
}

// Polls pairs of flagged words at(k) for the bits k of `need` until both words of each carry `flag`.
template <class At>
DI void take_flagged(Ctx& c, u64* x, u64* y, u32 need, u64 flag, At at, u32 phase, u32 index) {
  Spin spin{0, 0};
  while (true) {
#pragma unroll
    for (u32 k = 0; k < W; ++k) get_pair_if(x[k], y[k], at(k), need & (1u << k));
#pragma unroll
    for (u32 k = 0; k < W; ++k) {
#if BREAK == ONE_WORD_CHECK
      const bool here = x[k] >> 32 == flag >> 32;
#else
      const bool here = x[k] >> 32 == flag >> 32 && y[k] >> 32 == flag >> 32;
#endif
      if (here) need &= ~(1u << k);
    }
    if (need == 0 || c.dead || give_up(c, spin, need, phase, index)) break;
  }
}

// Wipes 32 places of a set of flagged slots that this call's message does not reach, in turn from call to call, so that
// no flag of 2^30 calls ago can look fresh.
DI void wipe_some(const Ctx& c, u64 set, u32 length) {
#if BREAK != NO_REARM
  if (c.block != 0 || thread() >= 32) return;
  const Args& a = *c.a;
  const u32 place = ((u32)(c.epoch >> 1) * 32 + thread()) % a.cap;
  for (u32 k = 0; place >= length && k < W - 1; ++k) put_pair(a.base[a.rank] + set + ((u64)k * a.cap + place) * 16, 0, 0);
#endif
}

// --- data ---------------------------------------------------------------------------------------------------------

DI u32 vectors(u32 bytes) { return (bytes + 15) / 16; }

// Reads the whole 16 bytes that hold the last element: aligned memory is never split inside them, and what lies behind
// the end is never stored.
DI Vec load(u64 base, u32 i) { return load_plain(base + (u64)i * 16); }

DI void store_word(u64 base, u32 at, u32 bytes, u32 v) {  // the last word of a message may be half
  if (at + 4 <= bytes) {
    store_plain_u32(base + at, v);
  } else if (at + 2 <= bytes) {
    store_plain_u16(base + at, v);
  }
}

// Only the last vector of a message can be cut short: it is kept until the end, so that this code stands there once.
DI void store(Ctx& c, u32 i, const Vec& v) {
  if ((i + 1) * 16 <= c.a->bytes) return store_plain(c.a->out + (u64)i * 16, v);
  c.tail = v, c.tail_at = i;
}

DI void store_tail(const Ctx& c) {
  if (c.tail_at == NONE) return;
#pragma unroll
  for (u32 k = 0; k < 4; ++k) store_word(c.a->out, c.tail_at * 16 + 4 * k, c.a->bytes, c.tail.w[k]);
}

DI Vec filled(u32 word) { return Vec{{word, word, word, word}}; }

DI Vec clean(Vec v, u32 empty = EMPTY) {
#pragma unroll
  for (u32 k = 0; k < 4; ++k) v.w[k] = v.w[k] == empty ? 0u : v.w[k];
  return v;
}

DI void rearm(u64 at, u32 empty = EMPTY) {
#if BREAK != NO_REARM
  put_vec(at, filled(empty));
#endif
}

// `fresh` begins a sum instead of adding to one.
DI void add_word(Sum* s, u32 word, bool fresh = false) {
#if DTYPE == BFLOAT16
  const Sum part[2] = {as_float(word << 16), as_float(word & 0xffff0000u)};
#elif DTYPE == FLOAT16
  const Sum part[2] = {half_to_float(word & 0xffffu), half_to_float(word >> 16)};
#elif DTYPE == FLOAT32
  const Sum part[1] = {as_float(word)};
#else
  const Sum part[1] = {word};
#endif
#pragma unroll
  for (u32 k = 0; k < PER_WORD; ++k) s[k] = fresh ? part[k] : s[k] + part[k];
}

DI u32 narrow_word(const Sum* s) {
#if DTYPE == BFLOAT16
  return pack_bfloat(s[0], s[1]);
#elif DTYPE == FLOAT16
  return pack_half(s[0], s[1]);
#elif DTYPE == FLOAT32
  return as_u32(s[0]);
#else
  return s[0];
#endif
}

DI void add(Sum* s, const Vec& v, bool fresh = false) {
#pragma unroll
  for (u32 k = 0; k < 4; ++k) add_word(s + k * PER_WORD, v.w[k], fresh);
}

DI Vec narrow(const Sum* s) {
  Vec v;
#pragma unroll
  for (u32 k = 0; k < 4; ++k) v.w[k] = narrow_word(s + k * PER_WORD);
  return v;
}

DI void zero(Sum* s) {
#pragma unroll
  for (u32 k = 0; k < LANES; ++k) s[k] = 0;
}

// Sum of r[k] in rank order: the same bits on every rank.
DI void sum_ranks(Sum* s, const Vec* r) {
#pragma unroll
  for (int k = 0; k < W; ++k) add(s, r[k], k == 0);
}

DI void sum_some(Sum* s, const Vec* r, u32 mask) {
  zero(s);
#pragma unroll
  for (int k = 0; k < W; ++k) {
    if ((mask >> k) & 1) add(s, r[k]);
  }
}

DI void same(Vec* r, const Vec& own) {  // own contribution stays in registers: take() leaves the rank's own entry alone
#pragma unroll
  for (int k = 0; k < W; ++k) r[k] = own;
}
