#!/usr/bin/env bash
# ./run.sh            measure this machine with 8 ranks and write the page; words behind it go to `collbench sweep`
# ./run.sh test       run the tests; words behind it go to pytest (-m slow: the long ones)
# ./run.sh gate-demo  the regression gate twice on 2 CPU ranks: nothing changed, then one algorithm slowed by 20 %; words
#                     behind it go to tests/gate_demo.py (--same 5 --slowed 0: five self-comparisons; --share-gpu: on one GPU)
# ./run.sh check      ruff, mypy, the workflows of GitHub and the test of the layers
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
  # its warnings matter only where it fails: one for each index that lacks a package, and why an index was not reached
  pip install --quiet "${packages[@]}" >.venv/pip.log 2>&1 || { cat .venv/pip.log >&2; exit 1; }
  echo "$stamp" >.venv/installed
}

measure() {
  local run word before="" share=()
  run="reports/run-$(date +%Y%m%d-%H%M%S)"
  if ((gpus && gpus < 8)); then share=(--share-gpu); fi
  for word in "$@"; do
    case "$before$word" in
      -h | --help | --dry-run) collbench sweep --nproc 8 --budget 45s "${share[@]}" "$@"; return ;; # there is no run to report
      --out=*) run=${word#--out=} ;;
      --out\ *) run=$word ;;
    esac
    before=""
    if [[ "$word" == --out ]]; then before="--out "; fi
  done
  collbench sweep --nproc 8 --budget 45s --out "$run" "${share[@]}" "$@"
  collbench report "$run"
}

# schemas and rules come with the packages: nothing is fetched
workflows() {
  check-jsonschema --quiet --builtin-schema vendor.github-workflows .github/workflows/*.yml &&
    check-jsonschema --quiet --builtin-schema vendor.github-actions action.yml &&
    zizmor --offline --quiet --no-progress .github/workflows action.yml || return
  # what GitHub itself would say of expressions and scripts, where it is installed
  if command -v actionlint >/dev/null; then actionlint; fi
}

case "${1:-}" in
  test) environment; pytest "${@:2}" ;;
  check) environment; ruff check . && ruff format --check . && mypy && workflows && pytest -q tests/test_floors.py ;;
  gate-demo) environment; python -m tests.gate_demo "${@:2}" ;;
  "" | -*) environment; measure "$@" ;;
  *) echo "run.sh: unknown word '$1': expected nothing, test, check, gate-demo, or options of collbench sweep" >&2; exit 2 ;;
esac
