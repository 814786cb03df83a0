// All-reduce for machines whose GPUs sit in groups below switches. Chunk q belongs to member q of every group (as many
// chunks as the smallest group has members). Push to the chunk's owner in my group; owners of one chunk exchange fp32
// partial sums, one message per pair of groups; every owner adds them up in the same order and pushes the sum to its
// group. Data announces itself; two sets, emptied on receipt: leaving a call needs chunk 0, to which every rank has
// contributed, so the lemma holds.

DI Vec partial_part(const Sum* s, u32 part) {
  Vec v;
#pragma unroll
  for (u32 k = 0; k < 4; ++k) v.w[k] = as_u32((float)s[4 * part + k]);
  return clean(v, EMPTY_FLOAT);
}

DI void add_partial(Sum* s, u32 part, const Vec& v) {
#pragma unroll
  for (u32 k = 0; k < 4; ++k) s[4 * part + k] += as_float(v.w[k]);
}

// Slots have none for oneself: the one of `other` beside `self`.
DI u32 beside(u32 other, u32 self) { return other > self ? other - 1 : other; }

// FUSED: owners push sums to themselves too, and rows of them are normalised where they arrive (fused.cuh).
template <bool FUSED>
DI void islands_stages(Ctx& c) {
  const Args& a = *c.a;
  const u64 mine = a.base[a.rank];
  const u32 n = vectors(a.bytes), chunk = (n + a.owners - 1) / a.owners, slot = (a.cap + a.owners - 1) / a.owners;
  const u32 me = a.index[a.rank], home = a.group[a.rank], self = 1u << a.rank;
  Vec x[W];
#pragma unroll
  for (u32 k = 0; k < W; ++k) {
    const u32 i = a.index[k] * chunk + c.first;
    x[k] = filled(0);
    if (((a.owners_mask >> k) & 1) && c.first < chunk && i < n) x[k] = load(a.in, i);
  }
  begin(c);
  const u64 partials = (u64)(a.largest - 1) * slot * 16, sums = partials + (u64)(a.groups - 1) * PARTS * slot * 16;
  const u64 set = a.data + set_of(c.epoch, 2) * (sums + (u64)(a.largest == 1 && !FUSED ? 0 : a.owners) * slot * 16);
  auto place = [&](u32 k, u32 j) { return set + ((u64)k * slot + j) * 16; };

  for (u32 j = c.first; j < chunk; j += c.step) {
#pragma unroll
    for (u32 k = 0; k < W; ++k) {
      const u32 i = a.index[k] * chunk + j;
      if (!(((a.owners_mask & ~self) >> k) & 1) || i >= n) continue;
      put_vec(a.base[k] + place(beside(me, a.index[k]), j), clean(j == c.first ? x[k] : load(a.in, i)));
    }
  }

  advance(c);

  for (u32 j = c.first; me < a.owners && j < chunk; j += c.step) {
    const u32 i = me * chunk + j;
    if (i >= n) break;
    Vec r[W];
    same(r, clean(load(a.in, i)));
    auto from_member = [&](u32 k) { return mine + place(beside(a.index[k], me), j); };
    take<W>(c, r, a.members & ~self, from_member, ISLAND_SCATTER, i);
    Sum s[LANES], total[LANES];
    sum_some(s, r, a.members);
#pragma unroll
    for (u32 k = 0; k < W; ++k) {
      if (((a.members & ~self) >> k) & 1) rearm(from_member(k));
    }
    zero(total);
#pragma unroll
    for (u32 part = 0; part < PARTS; ++part) {
#pragma unroll
      for (u32 k = 0; k < W; ++k) {
        if (!((a.partners >> k) & 1)) continue;
        put_vec(a.base[k] + partials + place(beside(home, a.group[k]) * PARTS + part, j), partial_part(s, part));
      }
    }
#pragma unroll
    for (u32 part = 0; part < PARTS; ++part) {
      auto from_partner = [&](u32 k) { return mine + partials + place(beside(a.group[k], home) * PARTS + part, j); };
      same(r, partial_part(s, part));
      take<W>(c, r, a.partners, from_partner, ISLAND_EXCHANGE, i, EMPTY_FLOAT);
#pragma unroll
      for (u32 k = 0; k < W; ++k) {
        if (((a.partners | self) >> k) & 1) add_partial(total, part, r[k]);
        if ((a.partners >> k) & 1) rearm(from_partner(k), EMPTY_FLOAT);
      }
    }
    const Vec result = clean(narrow(total));
    if (c.dead) break;
#pragma unroll
    for (u32 k = 0; k < W; ++k) {
      if (((FUSED ? a.members : a.members & ~self) >> k) & 1) put_vec(a.base[k] + sums + place(me, j), result);
    }
    if (!FUSED) store(c, i, result);
  }

  if (FUSED) {
    normalise_rows(c, [&](u32 i, Sum* s) {
      const u32 owner = i / chunk;
      u32 who = 0;
#pragma unroll
      for (u32 k = 0; k < W; ++k) who |= (u32)(a.index[k] == owner) << k;
      auto from_owner = [&](u32) { return mine + sums + place(owner, i - owner * chunk); };
      Vec r[1] = {filled(0)};
      take<1>(c, r, 1, from_owner, ISLAND_GATHER, i, EMPTY, who & a.owners_mask);
      rearm(from_owner(0));
      zero(s);
      add(s, r[0]);
    });
    return;
  }

  for (u32 j = c.first; j < chunk; j += c.step) {
    u32 need = 0;
#pragma unroll
    for (u32 k = 0; k < W; ++k) need |= (u32)(a.index[k] * chunk + j < n) << k;
    need &= a.owners_mask & ~self;
    Vec r[W];
    auto from_owner = [&](u32 k) { return mine + sums + place(a.index[k], j); };
    take<W>(c, r, need, from_owner, ISLAND_GATHER, j);
#pragma unroll
    for (u32 k = 0; k < W; ++k) {
      if (!((need >> k) & 1)) continue;
      if (!c.dead) store(c, a.index[k] * chunk + j, r[k]);
      rearm(from_owner(k));
    }
  }
  store_tail(c);
}

DI void islands(Ctx& c) { islands_stages<false>(c); }
