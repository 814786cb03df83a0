#!/usr/bin/env bash
# Takes what docs/measurements holds on one GPU that several ranks share (fabric: shared-gpu), in parts of under ten minutes:
#
#   docs/measurements/one-gpu.sh PART OUT       PART: kernels, model, systems, gate
#
# OUT gets a log per step, steps.tsv (step, exit code, seconds) and runs.tgz (run folders). A step that fails or outlasts
# its limit does not stop the others. NCCL=PATH/libnccl.so.2 names a library that allows several ranks on one GPU,
# COLLBENCH_FLASHINFER_INCLUDE where the peers' headers lie, DRY=1 prints the steps instead.
set -uo pipefail

part=${1:?PART: kernels, model, systems or gate}
out=${2:?OUT: a folder for the results}
python=${PYTHON:-python3}
nccl=(${NCCL:+--nccl "$NCCL"})
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
  step "$name" "$limit" "$python" -m collbench.sweep --share-gpu -d bfloat16 --no-probe --out "$out/runs/$name" "${nccl[@]}" "$@"
}

chain=(--modes graph --calls 122 --sizes "$sizes")

case $part in
  kernels)
    step litmus 60 "$python" -m collbench probe --share-gpu --nproc 8 --litmus --out "$out/runs/litmus"
    step harness 110 "$python" -m collbench.algorithms.cuda.harness --replays 1000 --budget 100 --json "$out/harness.json" \
      --kernels one_stage_pull_kept,push_flags,push_all_gather,push_reduce_scatter,push_all_to_all,push_barrier,push_fused,islands_fused
    sweep own-8 80 --nproc 8 --algorithms own "${chain[@]}" --launches 3 --budget 70s
    sweep own-2 50 --nproc 2 --algorithms own "${chain[@]}" --launches 3 --budget 40s
    for collective in all_gather reduce_scatter all_to_all barrier; do
      sweep "$collective-8" 30 --nproc 8 --collective "$collective" --sizes 1K,14336,64K --calls 1,122 --budget 25s
    done
    sweep fused-8 40 --nproc 8 --algorithms push,islands,auto --epilogue residual_rmsnorm --sizes 14336,43008 --calls 122 --budget 35s
    for left in relaxed_polls loads_together early_load own_in_register late_rearm; do
      COLLBENCH_OWN_WITHOUT=$left sweep "without-$left" 22 --nproc 8 --algorithms push,one_stage_pull_buffered "${chain[@]}" --budget 17s
    done
    COLLBENCH_OWN_PDL=1 sweep with-pdl 22 --nproc 8 --algorithms push,one_stage_pull_buffered "${chain[@]}" --budget 17s
    ;;
  model)
    step doctor 20 "$python" -m collbench doctor
    step doctor-deep 30 "$python" -m collbench doctor --deep
    step topo 30 "$python" -m collbench topo --json
    for ranks in 8 2; do
      step "probe-$ranks" 80 "$python" -m collbench probe --share-gpu --nproc "$ranks" --out "$out/runs/probe-$ranks"
      step "calibrate-$ranks" 30 "$python" -m collbench calibrate "$out/runs/probe-$ranks"
    done
    step default-sweep 160 "$python" -m collbench.sweep --nproc 8 --share-gpu "${nccl[@]}" --out "$out/runs/default" --budget 150s
    step explain 20 "$python" -m collbench explain "$out/runs/default"
    step advise 20 "$python" -m collbench advise "$out/runs/default" --workload moe-61-decode
    step report 30 "$python" -m collbench report "$out/runs/default"
    ;;
  systems)
    for ranks in 8 2; do
      sweep "systems-$ranks" 200 --nproc "$ranks" --algorithms own,symm,nccl,vllm,flashinfer "${chain[@]}" --launches 5 --budget 180s
    done
    sweep nccl-depth 60 --nproc 8 --algorithms nccl_symmetric,nccl_per_call_ring_ll,nccl_auto,coalesced "${chain[@]}" --budget 50s
    sweep expert 60 --nproc 8 --collective all_to_all --skew even,dispatch:1,combine:1 --algorithms expert,own --sizes 14336,64K,1M \
      --calls 1,122 --budget 50s
    step tune-nccl 70 "$python" -m collbench tune-nccl --nproc 2 --share-gpu "${nccl[@]}" -b 14336 --budget 60s --out "$out/runs/tune"
    ;;
  gate)
    # one look at 8 blocks: what both comparisons have time for
    demo=("$python" -m tests.gate_demo --share-gpu --blocks 8)
    step gate-same 290 "${demo[@]}" --same 1 --slowed 0 --out "$out/runs/gate-same"
    step gate-slowed 290 "${demo[@]}" --same 0 --slowed 1 --out "$out/runs/gate-slowed"
    ;;
  *)
    echo "one-gpu.sh: no part $part" >&2
    exit 2
    ;;
esac
[[ -n ${DRY:-} ]] || tar -C "$out" -czf "$out/runs.tgz" runs
