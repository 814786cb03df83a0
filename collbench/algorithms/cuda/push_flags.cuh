// One-stage push with a flag in every 8 bytes: 4 of data, 4 of flag; any element type and any bits.
//
// A message that does not fit the slots goes in three rounds of equal length. Rounds alternate between two sets, and
// their number is odd, so the next call goes on with the other set. Within a call thread t handles the same places in
// every round, on every rank, so that what it receives in round r+1 tells that its peer's thread t is done with round
// r; places behind the end of the message are sent too, as zeros, to keep that true.
// A flag is the call's epoch (30 bits) and the round: never zero. A place that nobody has written for 2^30 calls could
// hold a flag that looks fresh, so every call wipes 32 places of the set that it has used, behind its message.

DI u32 flag_rounds(u32 units, u32 cap) { return units <= cap ? 1 : 3; }

DI void load_unit(u32& low, u32& high, const Args& a, u32 at) {
  low = at < a.bytes ? load_plain_u32(a.in + at) : 0;
  high = at + 4 < a.bytes ? load_plain_u32(a.in + at + 4) : 0;
}

DI void push_flags(Ctx& c) {
  const Args& a = *c.a;
  const u64 mine = a.base[a.rank];
  const u32 units = (a.bytes + 7) / 8, rounds = flag_rounds(units, a.cap), length = (units + rounds - 1) / rounds;
  u32 low = 0, high = 0;
  if (c.first < length) load_unit(low, high, a, c.first * 8);
  begin(c);
  const u64 stride = (u64)(W - 1) * a.cap * 16;
  auto slot = [&](u32 src, u32 dst) { return (u64)(src > dst ? src - 1 : src) * a.cap * 16; };

  for (u32 round = 0; round < rounds; ++round) {
    const u64 set = a.data + set_of(c.epoch + round, 2) * stride;
    const u64 flag = (u64)(u32)(c.epoch * 4 + round + 1) << 32;
    for (u32 i = c.first; i < length; i += c.step) {
      const u32 at = (round * length + i) * 8;
      if (round != 0 || i != c.first) load_unit(low, high, a, at);
#pragma unroll
      for (u32 k = 1; k < W; ++k) {
        const u32 peer = a.rank + k < W ? a.rank + k : a.rank + k - W;
        put_pair(a.base[peer] + set + slot(a.rank, peer) + (u64)i * 16, flag | low, flag | high);
      }
    }
    if (round == 0) advance(c);
    for (u32 i = c.first; i < length; i += c.step) {
      const u32 at = (round * length + i) * 8;
      if (i != c.first || length > c.step) load_unit(low, high, a, at);
      u64 x[W], y[W];
#pragma unroll
      for (u32 k = 0; k < W; ++k) x[k] = flag | low, y[k] = flag | high;
      auto from = [&](u32 k) { return mine + set + slot(k, a.rank) + (u64)i * 16; };
      take_flagged(c, x, y, ALL & ~(1u << a.rank), flag, from, FLAGGED, i);
      Sum s[2 * PER_WORD];
#pragma unroll
      for (u32 k = 0; k < 2 * PER_WORD; ++k) s[k] = 0;
#pragma unroll
      for (u32 k = 0; k < W; ++k) add_word(s, (u32)x[k]), add_word(s + PER_WORD, (u32)y[k]);
      if (!c.dead) {
        store_word(a.out, at, a.bytes, narrow_word(s));
        store_word(a.out, at + 4, a.bytes, narrow_word(s + PER_WORD));
      }
    }
  }
  wipe_some(c, a.data + set_of(c.epoch, 2) * stride, length);
}
