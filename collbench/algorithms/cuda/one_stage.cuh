// All-reduce in one stage: every rank reads every rank's message and sums it all.

// Data announces itself: no word of it is EMPTY. PUSH: my message goes into a slot of mine on every peer, two sets,
// emptied by whom they were meant for. Pull: it goes into a buffer of mine which peers poll; four sets, of which the
// one of call e-2 is emptied while call e waits: its readers have left (lemma), and they come back to it in call e+2,
// after my kernel of call e has ended. KEPT: my own vectors stay in registers instead of being polled too.
template <bool PUSH, bool KEPT>
DI void one_stage(Ctx& c) {
  const Args& a = *c.a;
  const u64 mine = a.base[a.rank];
  const u32 n = vectors(a.bytes);
  Vec own = filled(0), sizes = filled(0);
  if (WITHOUT != EARLY_LOAD && c.first < n) own = load(a.in, c.first);
  if (!PUSH) sizes = get_vec(mine + AT_SIZES);
  begin(c);
  if (WITHOUT == EARLY_LOAD && c.epoch != 0 && c.first < n) own = load(a.in, c.first);
  const u64 stride = (u64)(PUSH ? W : 1) * a.cap * 16;
  const u64 set = a.data + set_of(c.epoch, PUSH ? 2 : 4) * stride;
  auto empty_old_set = [&] {
    const u32 old = set_of(c.epoch + 2, 4);
    const u32 used = old == 0 ? sizes.w[0] : old == 1 ? sizes.w[1] : old == 2 ? sizes.w[2] : sizes.w[3];
    for (u32 i = c.first; i < used; i += c.step) rearm(mine + a.data + old * stride + (u64)i * 16);
    if (c.first == 0) put_u32(mine + AT_SIZES + 4 * set_of(c.epoch, 4), n);
  };

  if (!PUSH && WITHOUT == LATE_REARM) empty_old_set();
  own = clean(own);
  for (u32 i = c.first; i < n; i += c.step) {
    const Vec v = i == c.first ? own : clean(load(a.in, i));
    if (PUSH) {
#pragma unroll
      for (u32 k = KEPT ? 1 : 0; k < W; ++k) {
        const u32 peer = a.rank + k < W ? a.rank + k : a.rank + k - W;
        put_vec(a.base[peer] + set + ((u64)a.rank * a.cap + i) * 16, v);
      }
    } else {
      put_vec(mine + set + (u64)i * 16, v);
    }
  }
  if (!PUSH && WITHOUT != LATE_REARM) empty_old_set();

  advance(c);

  for (u32 i = c.first; i < n; i += c.step) {
    if (KEPT && i != c.first) own = clean(load(a.in, i));
    Vec r[W];
    if (KEPT) same(r, own);
    auto at = [&](u32 k) { return PUSH ? mine + set + ((u64)k * a.cap + i) * 16 : a.base[k] + set + (u64)i * 16; };
    auto empty_slots = [&] {
#pragma unroll
      for (u32 k = 0; k < W; ++k) {
        if (!KEPT || k != a.rank) rearm(at(k));
      }
    };
    take<W>(c, r, KEPT ? ALL & ~(1u << a.rank) : ALL, at, ONE_STAGE, i);
    if (PUSH && WITHOUT == LATE_REARM) empty_slots();
    Sum s[LANES];
    sum_ranks(s, r);
    if (!c.dead) store(c, i, narrow(s));
    if (PUSH && WITHOUT != LATE_REARM) empty_slots();
  }
  store_tail(c);
}

// Zero-copy: barrier, read every rank's input where it lies, barrier. The inputs were complete before the kernel began,
// so the flags order nothing but the kernels and are relaxed. The end barrier is announced as soon as the last reads
// have come back, before the sums are stored.
DI void one_stage_zero_copy(Ctx& c) {
  const Args& a = *c.a;
  const u32 n = vectors(a.bytes);
  begin(c);
#if BREAK != NO_START_BARRIER
  signal(c, AT_START);
  advance(c);
  await(c, AT_START, START_BARRIER);
#else
  advance(c);
#endif
  c.dead = block_or(c.dead);
  Vec result = filled(0);
  u32 at = n;
  for (u32 i = c.first; i < n; i += c.step) {
    Vec r[W];
#pragma unroll
    for (u32 k = 0; k < W; ++k) r[k] = get_vec(a.base[k] + a.in_offset + (u64)i * 16);
    if (at < n && !c.dead) store(c, at, result);
    Sum s[LANES];
    sum_ranks(s, r);
    result = narrow(s), at = i;
  }
  block_sync();
#if BREAK != NO_END_BARRIER
  signal(c, AT_END);
#endif
  if (at < n && !c.dead) store(c, at, result);
#if BREAK != NO_END_BARRIER
  await(c, AT_END, END_BARRIER);
#endif
  store_tail(c);
}

// Staged copy, one flag per block and peer, then reads; two sets, so that no end barrier is needed. Nothing is polled
// across the fabric, which suits links where a read is a round trip.
DI void one_stage_flagged(Ctx& c) {
  const Args& a = *c.a;
  const u64 mine = a.base[a.rank];
  const u32 n = vectors(a.bytes);
  Vec own = filled(0);
  if (c.first < n) own = load(a.in, c.first);
  begin(c);
  const u64 set = a.data + (u64)set_of(c.epoch, 2) * a.cap * 16;
  for (u32 i = c.first; i < n; i += c.step) {
    put_vec(mine + set + (u64)i * 16, i == c.first ? own : load(a.in, i));
  }
  block_sync();
#if BREAK != NO_FENCE
  if (thread() < W) fence_system();  // behind block_sync it covers the whole block's stores
#endif
  signal(c, AT_START);
  await(c, AT_START, STAGED);
#if BREAK != NO_FENCE
  if (thread() < W) fence_system();
#endif
  c.dead = block_or(c.dead);
  advance(c);
  for (u32 i = c.first; i < n; i += c.step) {
    Vec r[W];
    if (i != c.first) own = load(a.in, i);
    same(r, own);
#pragma unroll
    for (u32 k = 0; k < W; ++k) get_vec_if(r[k], a.base[k] + set + (u64)i * 16, k != a.rank);
    Sum s[LANES];
    sum_ranks(s, r);
    if (!c.dead) store(c, i, narrow(s));
  }
  store_tail(c);
}
