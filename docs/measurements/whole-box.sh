#!/usr/bin/env bash
# Everything that collbench can say about one box with several GPUs, in two parts of under ten minutes:
#
#   docs/measurements/whole-box.sh PART OUT     PART: measure, judge
#
# `measure`: captures of the wiring, probes, sweeps with all, half and two of the GPUs. `judge`: calibration, prediction,
# explanation and page of that run, agreement with nccl-tests' method, the gate against itself.
# OUT gets a log per step, steps.tsv (step, exit code, seconds), captures and runs.tgz. A step that fails or outlasts its
# limit does not stop the others. GPUS=N (default: all); NCCL=PATH/libnccl.so.2 names another NCCL; DRY=1 prints the steps.
set -uo pipefail

part=${1:?PART: measure or judge}
out=${2:?OUT: a folder for the results}
python=${PYTHON:-python3}
gpus=${GPUS:-$(nvidia-smi --list-gpus 2>/dev/null | wc -l)}
nccl=(${NCCL:+--nccl "$NCCL"})
if ((gpus < 2)); then
  echo "whole-box.sh: $gpus GPUs here: one-gpu.sh is for one" >&2
  exit 3
fi
# NVLink multicast needs a fabric manager that lets it: what hangs there takes the whole box along
export NCCL_NVLS_ENABLE=0 TORCH_SYMM_MEM_DISABLE_MULTICAST=1 NVSHMEM_DISABLE_NVLS=1
mkdir -p "$out/runs" "$out/captures"

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

sweep() { # RANKS LIMIT OPTIONS...
  local ranks=$1 limit=$2
  shift 2
  step "sweep-$ranks" "$limit" "$python" -m collbench.sweep --nproc "$ranks" -d bfloat16 --budget $((limit - 10))s \
    --out "$out/runs/sweep-$ranks" "${nccl[@]}" "$@"
}

case $part in
  measure)
    step smi-topo 10 nvidia-smi topo -m
    for kind in r w n a; do step "smi-p2p-$kind" 10 nvidia-smi topo -p2p "$kind"; done
    step lspci 10 lspci -tv
    step topo 20 "$python" -m collbench topo --json --out "$out/captures/topology.json"
    step doctor 10 "$python" -m collbench doctor
    step doctor-deep 20 "$python" -m collbench doctor --deep
    step probe 80 "$python" -m collbench probe --nproc "$gpus" --out "$out/runs/probe"
    # NCCL's own view of the wiring
    export NCCL_TOPO_DUMP_FILE=$out/captures/nccl-topology.xml NCCL_GRAPH_DUMP_FILE=$out/captures/nccl-graph.xml
    step nccl-dumps 40 "$python" -m collbench.sweep --nproc "$gpus" --algorithms nccl_auto -b 1K -e 1K --modes eager --calls 1 \
      --no-probe --out "$out/runs/dumps" "${nccl[@]}"
    unset NCCL_TOPO_DUMP_FILE NCCL_GRAPH_DUMP_FILE
    sweep "$gpus" 200
    ((gpus > 4)) && sweep 4 80
    ((gpus > 2)) && sweep 2 60
    ;;
  judge)
    run=$out/runs/sweep-$gpus
    step calibrate 30 "$python" -m collbench calibrate "$out/runs/probe"
    step explain 20 "$python" -m collbench explain "$run"
    step advise 20 "$python" -m collbench advise "$run" --workload moe-61-decode
    step predict 10 "$python" -m collbench predict --topology "$out/captures/topology.json" -b 14336
    step report 30 "$python" -m collbench report "$run"
    # NCCL from outside, both by its own average over many calls and one call at a time
    step nccl-tests 60 "$python" -m collbench nccl-tests --nproc "$gpus" -b 1K -e 4M -f 4 --out "$out/runs/nccl-tests"
    one=(--nproc "$gpus" --algorithms push,one_stage_pull_buffered,nccl_ring_ll -d bfloat16 --modes graph --calls 122
      --sizes 14336,43008 --no-probe)
    step gate-same 380 "$python" -m collbench gate --paired --seed 1 --blocks 8 --baseline env:COLLBENCH_SIDE=1 \
      --candidate env:COLLBENCH_SIDE=2 --out "$out/runs/gate-same" -- "${one[@]}"
    ;;
  *)
    echo "whole-box.sh: no part $part" >&2
    exit 2
    ;;
esac
[[ -n ${DRY:-} ]] || tar -C "$out" -czf "$out/runs.tgz" runs captures
