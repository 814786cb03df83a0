// All-reduce in two stages: rank k owns chunk k, sums it, and everybody gets the sums.

// Data announces itself in both stages (one_stage.cuh says how, and when buffers are emptied). PUSH: chunks are written
// to their owner and sums to everybody; pull: both lie at their origin, where they are polled.
template <bool PUSH>
DI void two_stage(Ctx& c) {
  const Args& a = *c.a;
  const u64 mine = a.base[a.rank];
  const u32 n = vectors(a.bytes), chunk = (n + W - 1) / W, slot = (a.cap + W - 1) / W;
  Vec x[W], sizes = filled(0);
#pragma unroll
  for (u32 k = 0; k < W; ++k) {
    x[k] = filled(0);
    if (c.first < chunk && k * chunk + c.first < n) x[k] = load(a.in, k * chunk + c.first);
  }
  if (!PUSH) sizes = get_vec(mine + AT_SIZES);
  begin(c);
  const u64 sums = (u64)W * slot * 16, stride = sums + (u64)(PUSH ? W : 1) * slot * 16;
  const u64 set = a.data + set_of(c.epoch, PUSH ? 2 : 4) * stride;
  auto place = [&](u32 k, u32 j) { return set + ((u64)k * slot + j) * 16; };

  Vec own = filled(0);
  for (u32 j = c.first; j < chunk; j += c.step) {
    if (j != c.first) {
#pragma unroll
      for (u32 k = 0; k < W; ++k) {
        if (k * chunk + j < n) x[k] = load(a.in, k * chunk + j);
      }
    }
#pragma unroll
    for (u32 k = 0; k < W; ++k) {
      const Vec v = clean(x[k]);
      if (PUSH && k == a.rank) {
        if (j == c.first) own = v;
      } else if (k * chunk + j < n) {
        put_vec(PUSH ? a.base[k] + place(a.rank, j) : mine + place(k, j), v);
      }
    }
  }
  if (!PUSH) {
    const u32 old = set_of(c.epoch + 2, 4);
    const u32 used = old == 0 ? sizes.w[0] : old == 1 ? sizes.w[1] : old == 2 ? sizes.w[2] : sizes.w[3];
    const u64 at = mine + a.data + old * stride;
    for (u32 j = c.first; j < used; j += c.step) {
#pragma unroll
      for (u32 k = 0; k < W + 1; ++k) rearm(at + ((u64)k * slot + j) * 16);
    }
    if (c.first == 0) put_u32(mine + AT_SIZES + 4 * set_of(c.epoch, 4), chunk);
  }

  advance(c);

  for (u32 j = c.first; j < chunk; j += c.step) {
    const u32 i = a.rank * chunk + j;
    if (i >= n) break;
    if (PUSH && j != c.first) own = clean(load(a.in, i));
    Vec r[W];
    if (PUSH) same(r, own);
    auto at = [&](u32 k) { return PUSH ? mine + place(k, j) : a.base[k] + place(a.rank, j); };
    take<W>(c, r, PUSH ? ALL & ~(1u << a.rank) : ALL, at, SCATTER, i);
    Sum s[LANES];
    sum_ranks(s, r);
    const Vec result = clean(narrow(s));
    if (c.dead) break;
    if (PUSH) {
#pragma unroll
      for (u32 k = 1; k < W; ++k) {
        const u32 peer = a.rank + k < W ? a.rank + k : a.rank + k - W;
        put_vec(a.base[peer] + sums + place(a.rank, j), result);
      }
    } else {
      put_vec(mine + sums + place(0, j), result);
    }
    store(c, i, result);
    if (PUSH) {
#pragma unroll
      for (u32 k = 0; k < W; ++k) {
        if (k != a.rank) rearm(at(k));
      }
    }
  }

  for (u32 j = c.first; j < chunk; j += c.step) {
    u32 need = 0;
#pragma unroll
    for (u32 k = 0; k < W; ++k) need |= (u32)(k != a.rank && k * chunk + j < n) << k;
    const u32 mask = need;
    Vec r[W];
    auto at = [&](u32 k) { return PUSH ? mine + sums + place(k, j) : a.base[k] + sums + place(0, j); };
    take<W>(c, r, need, at, GATHER, j);
#pragma unroll
    for (u32 k = 0; k < W; ++k) {
      if (!((mask >> k) & 1)) continue;
      if (!c.dead) store(c, k * chunk + j, r[k]);
      if (PUSH) rearm(at(k));
    }
  }
  store_tail(c);
}

// Zero-copy: barrier, reduce my chunk by reads, barrier, gather the others' sums by reads. The sums lie in one buffer:
// the next call's first barrier protects it. Block b's flags cover what block b has written, hence one map from
// threads to places in both stages.
DI void two_stage_zero_copy(Ctx& c) {
  const Args& a = *c.a;
  const u32 n = vectors(a.bytes), chunk = (n + W - 1) / W;
  begin(c);
#if BREAK != NO_START_BARRIER
  signal(c, AT_START);
  await(c, AT_START, START_BARRIER);
#endif
  c.dead = block_or(c.dead);
  for (u32 j = c.first; j < chunk; j += c.step) {
    const u32 i = a.rank * chunk + j;
    if (i >= n) break;
    Vec r[W];
#pragma unroll
    for (u32 k = 0; k < W; ++k) r[k] = get_vec(a.base[k] + a.in_offset + (u64)i * 16);
    Sum s[LANES];
    sum_ranks(s, r);
    const Vec result = narrow(s);
    put_vec(a.base[a.rank] + a.data + (u64)j * 16, result);
    if (!c.dead) store(c, i, result);
  }
  block_sync();
#if BREAK != NO_FENCE
  if (thread() < W) fence_system();
#endif
  signal(c, AT_END);
  await(c, AT_END, MIDDLE_BARRIER);
#if BREAK != NO_FENCE
  if (thread() < W) fence_system();
#endif
  c.dead = block_or(c.dead);
  advance(c);
  for (u32 j = c.first; j < chunk && !c.dead; j += c.step) {
    Vec r[W];
#pragma unroll
    for (u32 k = 0; k < W; ++k) {
      r[k] = filled(0);
      get_vec_if(r[k], a.base[k] + a.data + (u64)j * 16, k != a.rank && k * chunk + j < n);
    }
#pragma unroll
    for (u32 k = 0; k < W; ++k) {
      if (k != a.rank && k * chunk + j < n) store(c, k * chunk + j, r[k]);
    }
  }
  store_tail(c);
}
