#!/usr/bin/env bash
# ./run.sh            measure this machine with 8 ranks and write the page; words behind it go to `collbench sweep`
# ./run.sh test       run the tests; words behind it go to pytest (-m slow: the long ones)
# ./run.sh gate-demo  the regression gate twice on 2 CPU ranks: nothing changed, then one algorithm slowed by 20 %
# ./run.sh check      ruff, mypy and the test of the layers
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
export OMP_NUM_THREADS=1 PATH="$PWD/.venv/bin:$PATH"

gpus=$(timeout 20 nvidia-smi -L 2>/dev/null | grep -c '^GPU' || true)

environment() {
  local python packages stamp
  if ((gpus)); then packages=(-e '.[sweep,cuda,dev]'); else packages=(torch==2.13.0 -e '.[cuda,dev]'); fi
  stamp="$(cksum <pyproject.toml) ${packages[*]}"
  if [[ -f .venv/installed && "$(<.venv/installed)" == "$stamp" ]]; then return; fi
  for python in "${PYTHON:-python3}" python3.13 python3.12 python3.11 none; do
    "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && break
  done
  [[ "$python" != none ]] || { echo "run.sh: no Python 3.11 or newer: install one or set PYTHON to it" >&2; exit 3; }
  if [[ ! -x .venv/bin/pip ]]; then "$python" -m venv --clear .venv >&2; fi
  echo "run.sh: installing ${packages[*]} into .venv" >&2
  pip install --quiet "${packages[@]}" >&2
  echo "$stamp" >.venv/installed
}

measure() {
  local run share=()
  run="reports/run-$(date +%Y%m%d-%H%M%S)"
  if ((gpus && gpus < 8)); then share=(--share-gpu); fi
  collbench sweep --nproc 8 --budget 45s --out "$run" "${share[@]}" "$@"
  collbench report "$run"
}

# the quartile of a launch sees less of other load on a laptop than its median does
# both verdicts are printed; it succeeds if the first is a pass and the second names the slowed algorithm and no other
gate_demo() {
  local out code=0 options=(--nproc 2 --algorithms slowed_ring,host_tree,host_one_stage_push --sizes 32K,64K
    --modes eager --calls 1 -n 1000)
  out="reports/gate-demo-$(date +%Y%m%d-%H%M%S)"
  export PYTHONPATH="$PWD/tests/packages/slowed${PYTHONPATH:+:$PYTHONPATH}"
  for slowdown in 0 0.2; do
    echo "== candidate slowed by $slowdown =="
    code=0
    collbench gate --paired --baseline env:COLLBENCH_DEMO_SLOWDOWN=0 --candidate "env:COLLBENCH_DEMO_SLOWDOWN=$slowdown" \
      --quantile 0.25 --seed 1 --out "$out/$slowdown" --json-file "$out-$slowdown.json" -- "${options[@]}" || code=$?
    echo "exit code $code"
    if [[ "$slowdown" == 0 && "$code" != 0 ]]; then echo "run.sh: expected a pass" >&2; return 1; fi
  done
  python - "$out-0.2.json" <<'PYTHON'
import json, sys
rows = json.load(open(sys.argv[1]))["rows"]
slower = {row["cell_id"].split("/")[1] for row in rows if row["verdict"] == "REGRESSED"}
sys.exit(None if slower == {"slowed_ring"} else f"run.sh: expected slowed_ring alone to be slower, found {sorted(slower)}")
PYTHON
}

case "${1:-}" in
  test) environment; pytest "${@:2}" ;;
  check) environment; ruff check . && ruff format --check . && mypy && pytest -q tests/test_floors.py ;;
  gate-demo) environment; gate_demo ;;
  "" | -*) environment; measure "$@" ;;
  *) echo "run.sh: unknown word '$1': expected nothing, test, check, gate-demo, or options of collbench sweep" >&2; exit 2 ;;
esac
