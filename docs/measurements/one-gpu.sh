#!/usr/bin/env bash
# Takes what docs/measurements holds on one GPU that several ranks share (fabric: shared-gpu), in parts of under ten minutes:
#
#   docs/measurements/one-gpu.sh PART OUT       PART: kernels, model, systems, systems-2, launches, gate
#
# Limits are by what steps took on an H200 with 16 cores: with 8 ranks a start takes 2 to 6 s for our kernels, 3 to 8 for NCCL,
# 12 for FlashInfer, 15 for vLLM and 20 to 30 for SGLang, whatever is measured in it; a sweep starts each algorithm once per launch.
# OUT gets a log per step, steps.tsv (step, exit code, seconds) and runs.tgz (run folders). A step that fails or outlasts
# its limit does not stop the others. NCCL=PATH/libnccl.so.2 names a library that allows several ranks on one GPU,
# COLLBENCH_FLASHINFER_INCLUDE where the peers' headers lie, DRY=1 prints the steps instead. BUSY=1 measures although processes
# of somebody else use a GPU: needed where another GPU of the box has an MPS daemon of its own, wrong where it is this one.
set -uo pipefail

part=${1:?PART: kernels, model, systems, systems-2, launches or gate}
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
# what a library's start leaves time for
few=(--modes graph --calls 122 --sizes 1K,14336,64K)
beside=push,one_stage_pull_buffered,auto,nccl_auto,nccl_tree_ll,nccl_symmetric,symm_one_shot

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
  systems)
    # one launch of everything: no interval
    sweep systems-8 590 --nproc 8 --algorithms "$beside,vllm,flashinfer,sglang,mscclpp" "${few[@]}" --budget 575s
    ;;
  systems-2)
    sweep systems-2 320 --nproc 2 --algorithms "$beside,vllm,flashinfer,sglang" "${few[@]}" --budget 310s
    sweep expert 120 --nproc 8 --collective all_to_all --skew even,dispatch:1,combine:1 --algorithms expert,own --sizes 14336,64K,1M \
      --modes graph --calls 1,122 --budget 110s
    sweep nccl-depth 70 --nproc 8 --algorithms nccl_symmetric,nccl_per_call_ring_ll,nccl_auto,coalesced "${chain[@]}" --budget 60s
    step tune-nccl 80 "$python" -m collbench tune-nccl --nproc 2 --share-gpu "${busy[@]}" "${nccl[@]}" -b 14336 --budget 70s --out "$out/runs/tune"
    ;;
  launches)
    # five launches of the fastest of each library and of ours, single calls too; then with the early start that SGLang has
    sweep launches-8 430 --nproc 8 --launches 5 --modes graph --calls 1,122 --sizes 1K,14336,64K --budget 420s \
      --algorithms sglang_forced_one_shot_push,flashinfer_trtllm_fusion,vllm_forced_one_stage,push,one_stage_pull_buffered
    COLLBENCH_OWN_PDL=1 COLLBENCH_FLASHINFER_PDL=1 sweep pdl-8 160 --nproc 8 --launches 5 "${few[@]}" --budget 150s \
      --algorithms flashinfer_trtllm_fusion,push,one_stage_pull_buffered
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
