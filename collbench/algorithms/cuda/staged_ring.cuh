// Ring: reduce-scatter in W-1 steps, all-gather in W-1 steps; every rank writes to one peer only and is written to by
// one peer only, which is safe where posted writes to several root ports collapse. fp32 partial sums travel; a chunk is
// summed once, from its first rank on around the ring, and its sum is what everybody gets: same bits everywhere. Data
// announces itself, a slot per step, two sets, emptied on receipt; leaving a call needs chunks to which all have
// contributed, so the lemma holds.

DI void staged_ring(Ctx& c) {
  const Args& a = *c.a;
  const u64 mine = a.base[a.rank];
  const u32 n = vectors(a.bytes), chunk = (n + W - 1) / W, slot = (a.cap + W - 1) / W;
  const u32 previous = a.rank == 0 ? W - 1 : a.rank - 1;
  const u64 next = a.base[a.rank + 1 == W ? 0 : a.rank + 1];
  begin(c);
  advance(c);
  const u64 gather = (u64)(W - 1) * PARTS * slot * 16;
  const u64 set = a.data + set_of(c.epoch, 2) * (gather + (u64)(W - 1) * slot * 16);

  for (u32 j = c.first; j < chunk; j += c.step) {
    u32 k = a.rank;
    Sum s[LANES];
    zero(s);
    if (k * chunk + j < n) add(s, load(a.in, k * chunk + j));
    for (u32 step = 0; step + 1 < W; ++step) {
      const u64 at = set + ((u64)step * PARTS * slot + j) * 16;
      if (k * chunk + j < n) {
#pragma unroll
        for (u32 part = 0; part < PARTS; ++part) put_vec(next + at + (u64)part * slot * 16, partial_part(s, part));
      }
      k = k == 0 ? W - 1 : k - 1;
      zero(s);
      if (k * chunk + j >= n) continue;
      const Vec own = load(a.in, k * chunk + j);
      Vec r[PARTS];
      auto from = [&](u32 part) { return mine + at + (u64)part * slot * 16; };
#pragma unroll
      for (u32 part = 0; part < PARTS; ++part) r[part] = filled(0);
      take<PARTS>(c, r, (1u << PARTS) - 1, from, RING_REDUCE, step, EMPTY_FLOAT, 1u << previous);
#pragma unroll
      for (u32 part = 0; part < PARTS; ++part) add_partial(s, part, r[part]), rearm(from(part), EMPTY_FLOAT);
      add(s, own);
    }
    Vec result = clean(narrow(s));
    if (!c.dead && k * chunk + j < n) store(c, k * chunk + j, result);
    for (u32 step = 0; step + 1 < W; ++step) {
      const u64 at = set + gather + ((u64)step * slot + j) * 16;
      if (k * chunk + j < n && !c.dead) put_vec(next + at, result);
      k = k == 0 ? W - 1 : k - 1;
      if (k * chunk + j >= n) continue;
      Vec r[1] = {filled(0)};
      auto from = [&](u32) { return mine + at; };
      take<1>(c, r, 1, from, RING_GATHER, step, EMPTY, 1u << previous);
      rearm(from(0));
      result = r[0];
      if (!c.dead) store(c, k * chunk + j, result);
    }
  }
  store_tail(c);
}
