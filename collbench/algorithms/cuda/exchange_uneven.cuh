// All-to-all with a part of its own length for every pair of ranks. A flag stands in every 8 bytes, as in exchange.cuh, and
// a slot holds the longest part of any pair. Each pair of ranks exchanges 16 bytes with a flag in every call, also where
// there is nothing to send: every rank then waits for every other one, which is what makes two sets enough.
//
// What goes where stands behind the two sets in the rank's own region, 4 x W words: bytes for k, where they begin in the
// input, bytes from k, where they go in the output.

DI u32 pairs_of(u32 bytes) { return bytes == 0 ? 1 : (bytes + 7) / 8; }

DI void push_all_to_all_uneven(Ctx& c) {
  const Args& a = *c.a;
  const u64 mine = a.base[a.rank], stride = (u64)(W - 1) * a.cap * 16, table = mine + a.data + 2 * stride;
  auto told = [&](u32 row, u32 k) { return load_plain_u32(table + (u64)(row * W + k) * 4); };
  auto slot = [&](u32 src, u32 dst) { return (u64)(src > dst ? src - 1 : src) * a.cap * 16; };
  begin(c);
  const u64 set = a.data + set_of(c.epoch, 2) * stride;
  const u64 flag = (u64)(u32)(c.epoch * 4 + 1) << 32;

  for (u32 turn = 1; turn <= W; ++turn) {  // the next rank first, so that not all write to one; the own part last
    const u32 k = (a.rank + turn) % W, bytes = told(0, k);
    const u64 given = a.in + told(1, k), own = a.out + told(3, k);
    for (u32 i = c.first; i < pairs_of(bytes); i += c.step) {
      const u32 low = load_of_part(given, i * 8, bytes), high = load_of_part(given, i * 8 + 4, bytes);
      if (k == a.rank) {
        store_of_part(own, i * 8, bytes, low), store_of_part(own, i * 8 + 4, bytes, high);
      } else {
        put_pair(a.base[k] + set + slot(a.rank, k) + (u64)i * 16, flag | low, flag | high);
      }
    }
  }
  advance(c);

  u32 most = 1;
  for (u32 k = 0; k < W; ++k) {
    const u32 pairs = pairs_of(told(2, k));
    most = k != a.rank && pairs > most ? pairs : most;
  }
  for (u32 i = c.first; i < most; i += c.step) {
    u64 x[W], y[W];
    u32 need = 0;
#pragma unroll
    for (u32 k = 0; k < W; ++k) {
      x[k] = y[k] = flag;
      if (k != a.rank && i < pairs_of(told(2, k))) need |= 1u << k;
    }
    auto from = [&](u32 k) { return mine + set + slot(k, a.rank) + (u64)i * 16; };
    take_flagged(c, x, y, need, flag, from, PART, i);
    if (c.dead) break;
#pragma unroll
    for (u32 k = 0; k < W; ++k) {
      if (!(need & (1u << k))) continue;
      const u32 bytes = told(2, k);
      const u64 out = a.out + told(3, k);
      store_of_part(out, i * 8, bytes, (u32)x[k]), store_of_part(out, i * 8 + 4, bytes, (u32)y[k]);
    }
  }

  // As wipe_some(), for slots of different length.
#if BREAK != NO_REARM
  if (c.block != 0 || thread() >= 32) return;
  const u32 place = ((u32)(c.epoch >> 1) * 32 + thread()) % a.cap;
  for (u32 k = 0; k < W; ++k) {
    if (k != a.rank && place >= pairs_of(told(2, k))) put_pair(mine + set + slot(k, a.rank) + (u64)place * 16, 0, 0);
  }
#endif
}
