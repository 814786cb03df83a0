#!/usr/bin/env bash
# Everything that collbench can say about one box with several GPUs, in parts of under ten minutes:
#
#   docs/measurements/whole-box.sh PART OUT     PART: measure, fewer, libraries, judge
#
# `measure`: captures of the wiring, probes, a sweep with all GPUs. `fewer`: the same with four and two of them. `libraries`: five
# launches of ours and other people's kernels in captured chains, within LIMIT seconds. `judge`, behind `measure`: calibration, prediction, explanation and page of that run,
# agreement with nccl-tests' method, the gate against itself.
# OUT gets a log per step, steps.tsv (step, exit code, seconds), captures and runs.tgz. A step that fails or outlasts its
# limit does not stop the others. GPUS=N (default: all); NCCL=PATH/libnccl.so.2 names another NCCL, which nccl-tests gets too;
# NCCL_TESTS=FOLDER says where its programs are; DRY=1 prints the steps.
#
# Seen on two H200: sweeps end 3 to 5 s behind their budget. 120 s measured 424 of 532 cells of own, symm and nccl that could run,
# and cut those of large sizes. A library costs 4 to 5 s a start where it is preloaded, SGLang took 19 without: hence a part of its own.
set -uo pipefail

part=${1:?PART: measure, fewer, libraries or judge}
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

sweep() { # NAME RANKS LIMIT OPTIONS...
  local name=$1 ranks=$2 limit=$3
  shift 3
  step "$name" "$limit" "$python" -m collbench.sweep --nproc "$ranks" -d bfloat16 --no-probe --budget $((limit - 15))s \
    --out "$out/runs/$name" "${nccl[@]}" "$@"
}

raw() { # NAME OPTIONS...   nccl-tests by hand, as its users run it: one process for all GPUs
  local name=$1 env=(NCCL_NVLS_ENABLE=0)
  shift
  [[ -n ${NCCL:-} ]] && env+=(LD_LIBRARY_PATH="$(dirname "$NCCL")")
  # -J writes the whole environment into its file, so it gets none but this
  step "nt-$name" 20 env -i "${env[@]}" "$NCCL_TESTS/all_reduce_perf" -g "$gpus" -b 1K -e 4M -f 4 -d bfloat16 -n 122 -w 10 "$@" \
    -J "$out/captures/nt-$name.json"
}

ours=own,symm,nccl
case $part in
  measure)
    step smi-topo 10 nvidia-smi topo -m
    for kind in r w n a; do step "smi-p2p-$kind" 10 nvidia-smi topo -p2p "$kind"; done
    step nvlink 10 nvidia-smi nvlink -s
    command -v lspci >/dev/null && step lspci 10 lspci -tv # containers often lack it
    step topo 20 "$python" -m collbench topo --json --out "$out/captures/topology.json"
    step doctor 10 "$python" -m collbench doctor
    step doctor-deep 20 "$python" -m collbench doctor --deep
    step probe 80 "$python" -m collbench probe --nproc "$gpus" --out "$out/runs/probe"
    # NCCL's own view of the wiring
    export NCCL_TOPO_DUMP_FILE=$out/captures/nccl-topology.xml NCCL_GRAPH_DUMP_FILE=$out/captures/nccl-graph.xml
    step nccl-dumps 40 "$python" -m collbench.sweep --nproc "$gpus" --algorithms nccl_auto -b 1K -e 1K --modes eager --calls 1 \
      --no-probe --out "$out/runs/dumps" "${nccl[@]}"
    unset NCCL_TOPO_DUMP_FILE NCCL_GRAPH_DUMP_FILE
    sweep "sweep-$gpus" "$gpus" 350 --algorithms "$ours"
    ;;
  fewer)
    ((gpus > 4)) && sweep sweep-4 4 300 --algorithms "$ours"
    ((gpus > 2)) && sweep sweep-2 2 200 --algorithms "$ours"
    ;;
  libraries)
    sweep libraries "$gpus" "${LIMIT:-590}" --modes graph --calls 122 --sizes 1K,14336,64K --launches 5 \
      --algorithms own,vllm,sglang,flashinfer,mscclpp,nccl_auto,nccl_tree_ll,nccl_symmetric,symm
    ;;
  judge)
    run=$out/runs/sweep-$gpus
    step calibrate 30 "$python" -m collbench calibrate "$out/runs/probe"
    step explain 20 "$python" -m collbench explain "$run" --parameters "$out/runs/probe"
    step advise 20 "$python" -m collbench advise "$run" --workload moe-61-decode
    step predict 10 "$python" -m collbench predict --topology "$out/captures/topology.json" -b 14336
    step report 30 "$python" -m collbench report "$run" --parameters "$out/runs/probe"
    # the same NCCL by three of nccl-tests' methods (chains, graphs of 122, single calls), through the wrapper, and by ours
    if [[ -n ${NCCL_TESTS:-} ]]; then
      raw plain
      raw graph -G 10
      raw each -I 1
    fi
    step nccl-tests 40 env ${NCCL:+LD_LIBRARY_PATH="$(dirname "$NCCL"):${LD_LIBRARY_PATH:-}"} "$python" -m collbench nccl-tests \
      ${NCCL_TESTS:+--binary "$NCCL_TESTS"} --nproc "$gpus" -b 1K -e 4M -f 4 -d bfloat16 --out "$out/runs/nccl-tests"
    sweep nt-same "$gpus" 60 --algorithms nccl_auto
    one=(--nproc "$gpus" --algorithms push,nccl_ring_ll -d bfloat16 --modes graph --calls 122 --sizes 14336,43008 --no-probe)
    step gate-same 300 "$python" -m collbench gate --paired --seed 1 --blocks 8 --baseline env:COLLBENCH_SIDE=1 \
      --candidate env:COLLBENCH_SIDE=2 --out "$out/runs/gate-same" -- "${one[@]}"
    ;;
  *)
    echo "whole-box.sh: no part $part" >&2
    exit 2
    ;;
esac
[[ -n ${DRY:-} ]] || tar -C "$out" -czf "$out/runs.tgz" runs captures
