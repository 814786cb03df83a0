#!/usr/bin/env bash
# Takes what docs/measurements holds on one GPU that several ranks share (fabric: shared-gpu), in parts of under ten minutes:
#
#   docs/measurements/one-gpu.sh PART OUT
#
# PART: kernels, model, gate; systems-8 and libraries-8 (five launches of ours, torch's, NCCL's and compiled peers, and of the
# libraries, with 8 ranks), systems-2 and libraries-2 (with two), others (expert parallelism, batching, NCCL in depth, tune-nccl).
# A sweep starts each algorithm once per launch; a library is imported once per sweep, and compiles at its first start.
# OUT gets a log per step, steps.tsv (step, exit code, seconds) and runs.tgz (run folders). A step that fails or outlasts
# its limit does not stop the others. NCCL=PATH/libnccl.so.2 names a library that allows several ranks on one GPU,
# COLLBENCH_FLASHINFER_INCLUDE where the peers' headers lie, DRY=1 prints the steps instead. BUSY=1 measures although processes
# of somebody else use a GPU: needed where another GPU of the box has an MPS daemon of its own, wrong where it is this one.
# LIMIT=SECONDS bounds the one sweep of a systems or libraries part (default 560), NAMES=LIST says which algorithms it takes
# instead: with 8 ranks all of libraries-8 would take about a quarter of an hour. What a limit cut off goes on with
# `collbench sweep --resume OUT/runs/PART --budget TIME`.
set -uo pipefail

part=${1:?PART: kernels, model, systems-8, libraries-8, systems-2, libraries-2, others or gate}
out=${2:?OUT: a folder for the results}
python=${PYTHON:-python3}
nccl=(${NCCL:+--nccl "$NCCL"})
busy=(${BUSY:+--allow-busy})
sizes=1K,4K,14336,43008,64K,128K
mkdir -p "$out/runs"

step() { # NAME LIMIT COMMAND...
  local name=$1 limit=$2 begin=$SECONDS status=0
  shift 2
  if [[ -n ${DRY:-} ]]; then
    printf '%s (%s s): %s\n' "$name" "$limit" "$*"
    return
  fi
  timeout --kill-after=10 "$limit" "$@" >"$out/$name.log" 2>&1 || status=$?
  printf '%s\t%d\t%d\n' "$name" "$status" $((SECONDS - begin)) | tee -a "$out/steps.tsv"
}

sweep() { # NAME LIMIT OPTIONS...
  local name=$1 limit=$2
  shift 2
  step "$name" "$limit" "$python" -m collbench.sweep --share-gpu "${busy[@]}" -d bfloat16 --no-probe --out "$out/runs/$name" \
    "${nccl[@]}" "$@"
}

chain=(--modes graph --calls 122 --sizes "$sizes")
# what five launches of everything leave time for
few=(--modes graph --calls 122 --sizes 1K,14336,64K --launches 5)
limit=${LIMIT:-560}
# both halves of the systems have these, so that they can be laid side by side
anchors=push,one_stage_pull_buffered
ours=auto,one_stage_pull,push_flags,two_stage_pull,two_stage_push
compiled=flashinfer_pcie_push,flashinfer_pcie_flat,flashinfer_pcie_block,flashinfer_pcie_ring
flashinfer=flashinfer_trtllm_fusion,flashinfer_trtllm_fusion_pdl,flashinfer_trtllm_one_shot,flashinfer_trtllm_two_shot
flashinfer+=,flashinfer_pcie_workspace,flashinfer_pcie_copy_ring,flashinfer_pcie_copy_island,flashinfer_vllm
vllm=vllm_custom_all_reduce,vllm_forced_one_stage,vllm_forced_two_stage
sglang=sglang

case $part in
  kernels)
    step litmus 25 "$python" -m collbench probe --share-gpu "${busy[@]}" --nproc 8 --litmus --out "$out/runs/litmus"
    sweep own-8 170 --nproc 8 --algorithms own "${chain[@]}" --launches 3 --budget 160s
    sweep own-2 90 --nproc 2 --algorithms own "${chain[@]}" --launches 3 --budget 80s
    step harness 100 "$python" -m collbench.algorithms.cuda.harness --replays 1000 --budget 90 --json "$out/harness.json" \
      --kernels one_stage_pull_kept,push_flags,push_all_gather,push_reduce_scatter,push_all_to_all,push_barrier,push_fused,islands_fused
    for collective in all_gather reduce_scatter all_to_all barrier; do
      sweep "$collective-8" 20 --nproc 8 --collective "$collective" --algorithms own --sizes 1K,14336,64K --calls 1,122 --budget 16s
    done
    sweep fused-8 25 --nproc 8 --algorithms push,islands,auto --epilogue residual_rmsnorm --sizes 14336,43008 --calls 122 --budget 20s
    for left in relaxed_polls loads_together early_load own_in_register late_rearm; do
      COLLBENCH_OWN_WITHOUT=$left sweep "without-$left" 20 --nproc 8 --algorithms push,one_stage_pull_buffered "${chain[@]}" --budget 16s
    done
    ;;
  model)
    step doctor 10 "$python" -m collbench doctor
    step doctor-deep 15 "$python" -m collbench doctor --deep
    step topo 10 "$python" -m collbench topo --json
    for ranks in 8 2; do
      step "probe-$ranks" 40 "$python" -m collbench probe --share-gpu "${busy[@]}" --nproc "$ranks" --out "$out/runs/probe-$ranks"
      step "calibrate-$ranks" 20 "$python" -m collbench calibrate "$out/runs/probe-$ranks"
    done
    step default-sweep 330 "$python" -m collbench.sweep --nproc 8 --share-gpu "${busy[@]}" "${nccl[@]}" --out "$out/runs/default" \
      --algorithms own,nccl,symm --budget 320s
    step explain 20 "$python" -m collbench explain "$out/runs/default"
    step advise 20 "$python" -m collbench advise "$out/runs/default" --workload moe-61-decode
    step report 30 "$python" -m collbench report "$out/runs/default"
    ;;
  systems-8 | systems-2)
    sweep "$part" "$limit" --nproc "${part#*-}" "${few[@]}" --budget $((limit - 15))s \
      --algorithms "${NAMES:-$anchors,$ours,vllm_one_stage,vllm_two_stage,$compiled,nccl_auto,nccl_tree_ll,nccl_symmetric,symm_one_shot,symm_two_shot}"
    ;;
  libraries-8 | libraries-2)
    sweep "$part" "$limit" --nproc "${part#*-}" "${few[@]}" --budget $((limit - 15))s \
      --algorithms "${NAMES:-$anchors,$vllm,$sglang,$flashinfer,mscclpp}"
    ;;
  others)
    sweep expert 120 --nproc 8 --collective all_to_all --skew even,dispatch:1,combine:1 --algorithms expert,own --sizes 14336,64K,1M \
      --modes graph --calls 1,122 --budget 110s
    sweep joined 100 --nproc 8 --algorithms coalesced,push,nccl_ring_ll --modes graph --calls 122 --sizes 1K,14336 --budget 90s
    sweep nccl-depth 70 --nproc 8 --algorithms nccl_symmetric,nccl_per_call_ring_ll,nccl_auto "${chain[@]}" --budget 60s
    sweep fused-libraries 60 --nproc 8 --algorithms push,islands,flashinfer_trtllm_fusion,flashinfer_trtllm_fusion_pdl --epilogue residual_rmsnorm --sizes 14336,43008 \
      --calls 122 --modes graph --budget 50s
    step tune-nccl 150 "$python" -m collbench tune-nccl --nproc 2 --share-gpu "${busy[@]}" "${nccl[@]}" -b 14336 --budget 140s --out "$out/runs/tune"
    ;;
  gate)
    # one look at 8 blocks: what both comparisons have time for
    demo=("$python" -m tests.gate_demo --share-gpu "${busy[@]}" --blocks 8)
    step gate-same 290 "${demo[@]}" --same 1 --slowed 0 --out "$out/runs/gate-same"
    step gate-slowed 290 "${demo[@]}" --same 0 --slowed 1 --out "$out/runs/gate-slowed"
    ;;
  *)
    echo "one-gpu.sh: no part $part" >&2
    exit 2
    ;;
esac
[[ -n ${DRY:-} ]] || tar -C "$out" -czf "$out/runs.tgz" runs
