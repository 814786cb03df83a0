// Calls FlashInfer's all-reduce over PCIe, which the installed package ships as a header. `kernel` is its variant number.
#include "pcie_ipc_all_reduce.cuh"
#include "peer.h"

namespace fi = flashinfer::comm::pcie_ipc;

extern "C" int64_t peer_workspace_bytes(int64_t count, int max_blocks) {
  return fi::workspace_size(W, count, static_cast<int>(sizeof(Element)), max_blocks);
}

extern "C" int64_t peer_table_bytes() { return 0; }  // a push needs to know no peer's input

extern "C" int peer_launch(const Setup* setup, int64_t slot, cudaStream_t stream) {
  int64_t slabs[fi::kMaxWorldSize] = {};
  for (int r = 0; r < W; ++r) slabs[r] = static_cast<int64_t>(setup->slab[r]);
  const auto layout =
      fi::compute_workspace_layout(W, setup->count, static_cast<int>(sizeof(Element)), setup->max_blocks);
  const auto views = fi::make_peer_views(slabs, W, setup->rank, layout);
  return static_cast<int>(fi::all_reduce<Element>(
      at<const Element>(setup->input, setup->stride, slot), at<Element>(setup->output, setup->stride, slot),
      setup->count, views, setup->rank, W, setup->max_blocks, setup->count, setup->blocks, setup->threads,
      static_cast<fi::Variant>(setup->kernel), false, stream));
}
