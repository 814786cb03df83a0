// What decoding calls: all-reduce, residual added, rows normalised by their root mean square and scaled by weights.
//
// residual_out = x summed over ranks + residual, rounded; y = residual_out * weight / sqrt(mean of residual_out^2 over
// its row + epsilon). A message is rows of `hidden` elements, whole vectors; a block handles a row, so that its mean
// needs no other block. The mean is that of the rounded residual_out, in an order that depends on the number of threads
// alone: the same bits on every rank.

DI void widen(float* f, const Vec& v) {
  Sum s[LANES];
  add(s, v, true);
#pragma unroll
  for (u32 k = 0; k < LANES; ++k) f[k] = (float)s[k];
}

// `reduce(i, s)` waits for the sum of vector i.
template <class Reduce>
DI void normalise_rows(Ctx& c, Reduce reduce) {
  const Args& a = *c.a;
  const u32 of_row = a.hidden / LANES, rows = vectors(a.bytes) / of_row;
  for (u32 row = c.block; row < rows; row += c.blocks) {
    const u32 at = row * of_row;
    float squares = 0;
    for (u32 j = thread(); j < of_row; j += threads()) {
      const Vec residual = load(a.residual, at + j);
      Sum s[LANES];
      reduce(at + j, s);
      add(s, residual);
      const Vec out = narrow(s);
      if (!c.dead) store_plain(a.residual_out + (u64)(at + j) * 16, out);
      float f[LANES];
      widen(f, out);
#pragma unroll
      for (u32 k = 0; k < LANES; ++k) squares += f[k] * f[k];
    }
    const float scale = inverse_root(block_sum(squares) / (float)a.hidden + a.epsilon);
    for (u32 j = thread(); j < of_row && !c.dead; j += threads()) {
      float f[LANES], w[LANES];
      widen(f, load(a.residual_out, at + j));  // this thread wrote it
      widen(w, load(a.weight, j));
      Sum s[LANES];
#pragma unroll
      for (u32 k = 0; k < LANES; ++k) s[k] = (Sum)(f[k] * scale * w[k]);
      store_plain(a.out + (u64)(at + j) * 16, narrow(s));
    }
  }
}

// One-stage push (one_stage.cuh), its sums taken row by row.
DI void push_fused(Ctx& c) {
  const Args& a = *c.a;
  const u64 mine = a.base[a.rank];
  const u32 n = vectors(a.bytes);
  Vec own = filled(0);
  if (c.first < n) own = load(a.in, c.first);
  begin(c);
  const u64 set = a.data + set_of(c.epoch, 2) * ((u64)W * a.cap * 16);
  for (u32 i = c.first; i < n; i += c.step) {
    const Vec v = clean(i == c.first ? own : load(a.in, i));
#pragma unroll
    for (u32 k = 1; k < W; ++k) {
      const u32 peer = a.rank + k < W ? a.rank + k : a.rank + k - W;
      put_vec(a.base[peer] + set + ((u64)a.rank * a.cap + i) * 16, v);
    }
  }
  advance(c);
  normalise_rows(c, [&](u32 i, Sum* s) {
    Vec r[W];
    same(r, clean(load(a.in, i)));
    auto from = [&](u32 k) { return mine + set + ((u64)k * a.cap + i) * 16; };
    take<W>(c, r, ALL & ~(1u << a.rank), from, ONE_STAGE, i);
    sum_ranks(s, r);
#pragma unroll
    for (u32 k = 0; k < W; ++k) {
      if (k != a.rank) rearm(from(k));
    }
  });
}
