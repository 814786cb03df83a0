// Calls vLLM's custom all-reduce kernels, which the installed FlashInfer ships as a header, past their host-side dispatch:
// that dispatch launches nothing for more than two ranks unless it was told that all GPUs are joined by NVLink.
#include <stdexcept>
#include <string>

#include "vllm_custom_all_reduce.cuh"
#include "peer.h"

extern "C" int64_t peer_workspace_bytes(int64_t count, int max_blocks) {
  if (max_blocks > vllm::kMaxBlocks) return -1;
  // behind the signals lies what one rank has summed in the two-stage kernel
  return static_cast<int64_t>(sizeof(vllm::Signal)) + count * static_cast<int64_t>(sizeof(Element));
}

extern "C" int64_t peer_table_bytes() { return sizeof(vllm::RankData); }

extern "C" int peer_launch(const Setup* setup, int64_t slot, cudaStream_t stream) {
  vllm::RankSignals signals{};
  for (int r = 0; r < W; ++r) signals.signals[r] = reinterpret_cast<vllm::Signal*>(setup->slab[r]);
  auto* inputs = at<vllm::RankData>(setup->table, sizeof(vllm::RankData), slot);
  auto* result = at<Element>(setup->output, setup->stride, slot);
  const int packs = static_cast<int>(setup->count * static_cast<int64_t>(sizeof(Element)) / 16);
  auto kernel = setup->kernel == 0 ? vllm::cross_device_reduce_1stage<Element, W>
                                   : vllm::cross_device_reduce_2stage<Element, W>;
  kernel<<<setup->blocks, setup->threads, 0, stream>>>(inputs, signals, signals.signals[setup->rank], result,
                                                       setup->rank, packs);
  return static_cast<int>(cudaGetLastError());
}
