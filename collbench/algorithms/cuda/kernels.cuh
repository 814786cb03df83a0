// The designs by name, and the kernel that runs the one that -DKERNEL names.

DI void one_stage_pull(Ctx& c) { one_stage_zero_copy(c); }
DI void one_stage_pull_data(Ctx& c) { one_stage<false, false>(c); }
DI void one_stage_pull_kept(Ctx& c) { one_stage<false, true>(c); }
DI void one_stage_pull_flag(Ctx& c) { one_stage_flagged(c); }
DI void push(Ctx& c) { one_stage<true, WITHOUT != OWN_IN_REGISTER>(c); }
DI void two_stage_pull_data(Ctx& c) { two_stage<false>(c); }
DI void two_stage_pull_flag(Ctx& c) { two_stage_zero_copy(c); }
DI void two_stage_push(Ctx& c) { two_stage<true>(c); }
DI void islands_fused(Ctx& c) { islands_stages<true>(c); }
DI void push_all_gather(Ctx& c) { exchange<false, false>(c); }
DI void push_all_to_all(Ctx& c) { exchange<true, false>(c); }
DI void push_reduce_scatter(Ctx& c) { exchange<true, true>(c); }

#ifndef EMULATED
extern "C" __global__ void __launch_bounds__(MAX_THREADS, 1) collective(const __grid_constant__ Args a) {
  start_early();
  Ctx c = context(&a, blockIdx.x, gridDim.x);
  KERNEL(c);
}
#endif
