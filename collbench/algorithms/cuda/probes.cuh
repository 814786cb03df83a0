// Microbenchmarks between ranks: barriers, flags, dependent reads, loads and stores, litmus tests. Needs primitives.cuh.
//
// A task is one launch per rank that takes part. Times of latencies are taken here, with the clock of one thread; every
// wait ends by the deadline or by a peer's abort word.

constexpr u32 MAX_RANKS = 16;

// Offsets in every rank's region, mirrored in probes.py; from 3072 on lie the words of memory.py (AT_CLOSED).
constexpr u32 AT_ABORT = 0, AT_RESULT = 128, AT_MEET = 4096, AT_FLAG = 8192, AT_LITMUS = 1 << 20;
constexpr u32 LINE = 128, MESSAGE = 256;

enum Op { EMPTY_KERNEL, BARRIER, FLAG, READ_CHAIN, LOAD, STORE, MESSAGE_PASSING, TORN };

struct ProbeArgs {
  u64 base[MAX_RANKS];                   // region of every rank as mapped here
  u64 from[MAX_RANKS], to[MAX_RANKS];    // LOAD, STORE: addresses of this rank's flows
  u64 deadline_ns;
  u64 epoch;                             // above every flag value of earlier tasks
  u64 vectors;                           // LOAD, STORE: 16-byte vectors per flow
  u64 start;                             // READ_CHAIN: offset of the first line
  u32 op, rank, peer, mask;              // mask: ranks that take part in a barrier
  u32 rounds, blocks_per_flow;
  u32 first;                             // this rank begins (FLAG), writes (MESSAGE_PASSING, TORN)
  u32 fenced;                            // MESSAGE_PASSING, BARRIER: a fence before every flag
};

struct Wait {
  u64 begun;
  u32 turns;
};

DI u64 result_at(const ProbeArgs& a, u32 word) { return a.base[a.rank] + AT_RESULT + word * 8; }

// Result words: begin and end in ns, violations, looks, 1 + the rank waited for in vain, halves torn, changes seen.
enum Result { BEGIN, END, VIOLATIONS, LOOKS, MISSING, HALVES, CHANGES };

// True when a wait must end; looks at the clock and the abort word once in 256 turns.
DI bool late(const ProbeArgs& a, Wait& w, u32 missing) {
  maybe_delay();
  if ((++w.turns & 255) != 0) return false;
  if (get_u64(a.base[a.rank] + AT_ABORT) != 0) return true;
  const u64 now = clock_ns();
  if (w.begun == 0) w.begun = now;
  if (now - w.begun < a.deadline_ns) return false;
  put_u64(result_at(a, MISSING), missing + 1);
  for (u32 k = 0; k < MAX_RANKS; ++k) {
    if (a.base[k] != 0) put_u64(a.base[k] + AT_ABORT, a.rank + 1);
  }
  return true;
}

DI bool wait_for(const ProbeArgs& a, u64 at, u64 value, u32 who) {
  Wait w{0, 0};
  while (get_u64(at) < value) {
    if (late(a, w, who)) return false;
  }
  return true;
}

DI void probe_barrier(const ProbeArgs& a) {  // one warp: lane k meets rank k
  const u32 k = thread();
  const bool mine = k < MAX_RANKS && k != a.rank && (a.mask >> k & 1);
  bool well = true;
  for (u32 round = 1; round <= a.rounds; ++round) {
    if (a.fenced) fence_system();
    if (mine && well) put_u64(a.base[k] + AT_MEET + a.rank * LINE, a.epoch + round);
    if (mine && well) well = wait_for(a, a.base[a.rank] + AT_MEET + k * LINE, a.epoch + round, k);
    warp_sync();
    if (round == 1 && k == 0) put_u64(result_at(a, BEGIN), clock_ns());
  }
  if (k == 0) put_u64(result_at(a, END), clock_ns());
}

DI void probe_flag(const ProbeArgs& a) {
  const u64 there = a.base[a.peer] + AT_FLAG + a.rank * LINE, here = a.base[a.rank] + AT_FLAG + a.peer * LINE;
  u64 begin = 0;
  for (u32 round = 1; round <= a.rounds; ++round) {
    if (a.first) put_u64(there, a.epoch + round);
    if (!wait_for(a, here, a.epoch + round, a.peer)) return;
    if (!a.first) put_u64(there, a.epoch + round);
    if (round == 1) begin = clock_ns();  // the peer is there from now on
  }
  put_u64(result_at(a, BEGIN), begin);
  put_u64(result_at(a, END), clock_ns());
}

DI void probe_chain(const ProbeArgs& a) {  // each address is what the read before gave
  const u64 base = a.base[a.peer];
  u64 at = get_u64(base + a.start);
  const u64 begin = clock_ns();
  for (u32 round = 0; round < a.rounds; ++round) at = get_u64(base + at);
  const u64 end = at == 1 ? 0 : clock_ns();  // never 1: the clock waits for the last read
  put_u64(result_at(a, BEGIN), begin);
  put_u64(result_at(a, END), end);
}

DI void probe_load(const ProbeArgs& a, u32 block) {
  const u32 flow = block / a.blocks_per_flow;
  const u64 step = (u64)a.blocks_per_flow * threads();
  const u64 first = (u64)(block % a.blocks_per_flow) * threads() + thread();
  for (u32 round = 0; round < a.rounds; ++round) {
    u64 i = first;
    for (; i + 7 * step < a.vectors; i += 8 * step) {
      Vec v[8];
#pragma unroll
      for (int k = 0; k < 8; ++k) v[k] = get_vec(a.from[flow] + (i + k * step) * 16);
      u32 any = 0;  // loads whose words nobody uses would share registers, and wait for each other
#pragma unroll
      for (int k = 0; k < 8; ++k) any |= v[k].w[0] | v[k].w[1] | v[k].w[2] | v[k].w[3];
      if (any != 0) put_u64(result_at(a, CHANGES), any);  // sources hold zeros
    }
    for (; i < a.vectors; i += step) get_vec(a.from[flow] + i * 16);
  }
}

DI void probe_store(const ProbeArgs& a, u32 block) {
  const u32 flow = block / a.blocks_per_flow;
  const u64 step = (u64)a.blocks_per_flow * threads();
  const u64 first = (u64)(block % a.blocks_per_flow) * threads() + thread();
  const Vec v{{a.rank, a.rank, a.rank, a.rank}};
  for (u32 round = 0; round < a.rounds; ++round) {
    for (u64 i = first; i < a.vectors; i += step) put_vec(a.to[flow] + i * 16, v);
  }
}

// The reader says that it is there, and at the end that it has looked: a writer that went on would write over messages
// that nobody has seen yet, which looks as if they had been overtaken.
DI void message_writer(const ProbeArgs& a) {
  const u64 there = a.base[a.peer], said = a.base[a.rank] + AT_FLAG + a.peer * LINE;
  if (!wait_for(a, said, a.epoch + 1, a.peer)) return;
  for (u32 i = 0; i < a.rounds; ++i) {
    const u64 value = a.epoch + i + 1;
    put_vec(there + AT_LITMUS + (u64)i * MESSAGE, Vec{{(u32)value, (u32)value, (u32)value, (u32)value}});
    if (a.fenced) fence_system();
    put_u64(there + AT_FLAG + a.rank * LINE, value);
  }
  wait_for(a, said, a.epoch + a.rounds, a.peer);
}

DI void message_reader(const ProbeArgs& a) {
  const u64 here = a.base[a.rank], says = a.base[a.peer] + AT_FLAG + a.rank * LINE;
  put_u64(says, a.epoch + 1);
  u64 seen = a.epoch, violations = 0, looks = 0;
  while (seen < a.epoch + a.rounds) {
    if (!wait_for(a, here + AT_FLAG + a.peer * LINE, seen + 1, a.peer)) return;
    seen = get_u64(here + AT_FLAG + a.peer * LINE);
    if (a.fenced) fence_system();
    const Vec v = get_vec(here + AT_LITMUS + (seen - a.epoch - 1) * MESSAGE);
    const u32 want = (u32)seen;
    violations += v.w[0] != want || v.w[1] != want || v.w[2] != want || v.w[3] != want;
    ++looks;
  }
  put_u64(says, a.epoch + a.rounds);
  put_u64(result_at(a, VIOLATIONS), violations), put_u64(result_at(a, LOOKS), looks);
}

DI void torn_writer(const ProbeArgs& a) {  // until the reader has seen enough
  const u64 there = a.base[a.peer], stop = a.base[a.rank] + AT_FLAG + a.peer * LINE;
  put_u64(there + AT_FLAG + a.rank * LINE, a.epoch + 1);
  Wait w{0, 0};
  for (u32 value = 1; get_u64(stop) < a.epoch + 1; ++value) {
#pragma unroll 1
    for (u32 k = 0; k < 16; ++k) {
      const u32 word = value * 16 + k;
      put_vec(there + AT_LITMUS, Vec{{word, word, word, word}});
    }
    if (late(a, w, a.peer)) return;
  }
}

DI void torn_reader(const ProbeArgs& a) {
  const u64 here = a.base[a.rank];
  if (!wait_for(a, here + AT_FLAG + a.peer * LINE, a.epoch + 1, a.peer)) return;
  u64 torn = 0, halves = 0, changes = 0;
  u32 last = 0;
  for (u32 i = 0; i < a.rounds; ++i) {
    const Vec v = get_vec(here + AT_LITMUS);
    const bool split = v.w[0] != v.w[1] || v.w[2] != v.w[3];
    halves += split;
    torn += split || v.w[0] != v.w[2];
    changes += v.w[0] != last;
    last = v.w[0];
  }
  put_u64(a.base[a.peer] + AT_FLAG + a.rank * LINE, a.epoch + 1);
  put_u64(result_at(a, VIOLATIONS), torn), put_u64(result_at(a, LOOKS), a.rounds);
  put_u64(result_at(a, HALVES), halves), put_u64(result_at(a, CHANGES), changes);
}

DI void run_probe(const ProbeArgs& a, u32 block) {
  if (a.op == LOAD) return probe_load(a, block);
  if (a.op == STORE) return probe_store(a, block);
  if (a.op == BARRIER) return probe_barrier(a);
  if (thread() != 0 || block != 0) return;
  if (a.op == FLAG) probe_flag(a);
  if (a.op == READ_CHAIN) probe_chain(a);
  if (a.op == MESSAGE_PASSING) a.first ? message_writer(a) : message_reader(a);
  if (a.op == TORN) a.first ? torn_writer(a) : torn_reader(a);
}

#ifndef EMULATED
extern "C" __global__ void __launch_bounds__(512) probe(const __grid_constant__ ProbeArgs a) {
  start_early();
  run_probe(a, blockIdx.x);
}
#endif
