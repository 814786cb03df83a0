// The entry of the emulated ranks, a shared library for ctypes: as `virtual_ranks` on a GPU.

struct Job {
  const Args* args;
  const Step* steps;
  u32 count, fill;
  u64 counters, wrong;
};
static Job job;

static void body() {
  Fiber* self = current;
  auto run = [](Ctx& c) { KERNEL(c); };
  play(job.args[self->rank], job.steps, job.count, self->block, blocks_of_rank, job.counters + self->rank * 128, job.wrong + self->rank * 128, job.fill != 0, run);
  self->done = true;
  leave();
}

extern "C" unsigned args_size() { return sizeof(Args); }
extern "C" unsigned step_size() { return sizeof(Step); }

extern "C" void emulate(const Args* args, const Step* steps, u32 count, u32 blocks, u32 threads_per_block, void* counters, void* wrong, u32 fill, u64 seed) {
  job = Job{args, steps, count, fill, (u64)counters, (u64)wrong};
  per_block = threads_per_block, blocks_of_rank = blocks, random_state = seed * 2654435761u + 88172645463325252ull;
  barriers.assign(W * blocks, Barrier{}), warps.assign(W * blocks * 16, Barrier{});
  addends.assign(W * blocks, std::vector<float>(threads_per_block));
  fibers = std::vector<Fiber>(W * blocks * threads_per_block);
  for (unsigned i = 0; i < fibers.size(); ++i) {
    Fiber& f = fibers[i];
    f.rank = i / (blocks * per_block), f.block = i / per_block % blocks, f.thread = i % per_block;
    f.stack.resize(1 << 16);
    getcontext(&f.context);
    f.context.uc_stack.ss_sp = f.stack.data(), f.context.uc_stack.ss_size = f.stack.size(), f.context.uc_link = nullptr;
    makecontext(&f.context, body, 0);
  }
  const unsigned of_rank = blocks * per_block;
  for (unsigned left = (unsigned)fibers.size(); left != 0;) {
    // Now and then one rank runs ahead of the others, or one is left out for a while.
    if (draw() % 512 == 0) favoured = draw();
    const unsigned mode = favoured % 4, chosen = (favoured >> 8) % W;
    unsigned i = draw() % (unsigned)fibers.size();
    if (mode == 1 && draw() % 8 != 0) i = chosen * of_rank + draw() % of_rank;
    if (mode == 2 && fibers[i].rank == chosen && draw() % 32 != 0) continue;
    if (fibers[i].done) continue;
    current = &fibers[i];
    swapcontext(&scheduler, &current->context);
    if (current->done) --left;
  }
}
