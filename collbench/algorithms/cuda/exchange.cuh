// Collectives of parts in one push: all-gather, all-to-all, reduce-scatter; and the barrier. `bytes` is the larger of a
// rank's buffers, and a part is bytes / W. A flag stands in every 8 bytes, as in push_flags.cuh: any element type, any
// bits. A slot holds a part, so a message always goes in one round. Every rank gets something of every other one in
// every call, so the lemma holds.

// The part's bytes from `at` on, up to 4 of them: parts of 2-byte elements may start between two words.
DI u32 load_of_part(u64 base, u32 at, u32 end) {
  if (at + 4 <= end && (base + at) % 4 == 0) return load_plain_u32(base + at);
  u32 v = at + 2 <= end ? load_plain_u16(base + at) : 0;
  if (at + 4 <= end) v |= load_plain_u16(base + at + 2) << 16;
  return v;
}

DI void store_of_part(u64 base, u32 at, u32 end, u32 v) {
  if (at + 4 <= end && (base + at) % 4 == 0) return store_plain_u32(base + at, v);
  if (at + 2 <= end) store_plain_u16(base + at, v & 0xffffu);
  if (at + 4 <= end) store_plain_u16(base + at + 2, v >> 16);
}

// SCATTER: a part of the input for every rank, else all of it for everybody. SUM: parts are added up in rank order, else
// they lie side by side in the output.
template <bool SCATTER, bool SUM>
DI void exchange(Ctx& c) {
  const Args& a = *c.a;
  const u64 mine = a.base[a.rank];
  const u32 part = a.bytes / W, length = (part + 7) / 8;
  auto given = [&](u32 k) { return a.in + (SCATTER ? (u64)k * part : 0); };
  auto low_of = [&](u32 k, u32 i) { return load_of_part(given(k), i * 8, part); };
  auto high_of = [&](u32 k, u32 i) { return load_of_part(given(k), i * 8 + 4, part); };
  u32 low[SCATTER ? W : 1], high[SCATTER ? W : 1];
#pragma unroll
  for (u32 k = 0; k < (SCATTER ? W : 1); ++k) {
    low[k] = c.first < length ? low_of(k, c.first) : 0, high[k] = c.first < length ? high_of(k, c.first) : 0;
  }
  begin(c);
  const u64 stride = (u64)(W - 1) * a.cap * 16, set = a.data + set_of(c.epoch, 2) * stride;
  const u64 flag = (u64)(u32)(c.epoch * 4 + 1) << 32;
  auto slot = [&](u32 src, u32 dst) { return (u64)(src > dst ? src - 1 : src) * a.cap * 16; };

  for (u32 i = c.first; i < length; i += c.step) {
    if (i != c.first) {
#pragma unroll
      for (u32 k = 0; k < (SCATTER ? W : 1); ++k) low[k] = low_of(k, i), high[k] = high_of(k, i);
    }
#pragma unroll
    for (u32 k = 0; k < W; ++k) {
      if (k == a.rank) continue;
      put_pair(a.base[k] + set + slot(a.rank, k) + (u64)i * 16, flag | low[SCATTER ? k : 0], flag | high[SCATTER ? k : 0]);
    }
  }
  advance(c);
  for (u32 i = c.first; i < length; i += c.step) {
    const u64 own_low = flag | low_of(a.rank, i), own_high = flag | high_of(a.rank, i);
    u64 x[W], y[W];
#pragma unroll
    for (u32 k = 0; k < W; ++k) x[k] = own_low, y[k] = own_high;
    auto from = [&](u32 k) { return mine + set + slot(k, a.rank) + (u64)i * 16; };
    take_flagged(c, x, y, ALL & ~(1u << a.rank), flag, from, PART, i);
    if (c.dead) break;
    if (SUM) {
      Sum s[2 * PER_WORD];
#pragma unroll
      for (u32 k = 0; k < W; ++k) add_word(s, (u32)x[k], k == 0), add_word(s + PER_WORD, (u32)y[k], k == 0);
      store_of_part(a.out, i * 8, part, narrow_word(s)), store_of_part(a.out, i * 8 + 4, part, narrow_word(s + PER_WORD));
    } else {
#pragma unroll
      for (u32 k = 0; k < W; ++k) {
        const u64 out = a.out + (u64)k * part;
        store_of_part(out, i * 8, part, (u32)x[k]), store_of_part(out, i * 8 + 4, part, (u32)y[k]);
      }
    }
  }
  wipe_some(c, set, length);
}

// Barrier: one element of every rank travels beside the flag, so that the output proves that all have entered. Every
// place is written in every call, so no old flag stays.
DI void push_barrier(Ctx& c) {
  const Args& a = *c.a;
  const u32 k = thread(), part = a.bytes / W;
  const u32 word = load_of_part(a.in, 0, part);
  begin(c);
  advance(c);
  if (c.block != 0 || k >= W) return;
  const u64 set = a.data + set_of(c.epoch, 2) * (MAX_RANKS * 8), flag = (u64)(u32)(c.epoch * 4 + 1) << 32;
  u64 found = flag | word;
  if (k != a.rank) {
    put_u64(a.base[k] + set + a.rank * 8, found);
    Spin spin{0, 0};
    while ((found = get_u64(a.base[a.rank] + set + k * 8)) >> 32 != flag >> 32) {
      if (c.dead || give_up(c, spin, 1u << k, ENTERED, 0)) return;
    }
  }
  store_of_part(a.out + (u64)k * part, 0, part, (u32)found);
}
