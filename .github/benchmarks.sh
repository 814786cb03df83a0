#!/usr/bin/env bash
# Measures our own host-side code in two working trees, in turn, and hands the times to the gate; it only warns.
#   .github/benchmarks.sh BASE_TREE HEAD_TREE OUT      ROUNDS (5) and PYTHON (python) may be set
# Five processes of the base teach the gate how much unchanged runs differ here and today; that spread is all it judges with.
set -euo pipefail

base=$(realpath "$1") head=$(realpath "$2") out=$3
mkdir -p "$out/base" "$out/head"
out=$(realpath "$out")
PYTHON=${PYTHON:-python}

measure() {
  local tree=$head
  if [[ "$1" == base ]]; then tree=$base; fi
  (cd "$tree" && PYTHONPATH=$tree:${PYTHONPATH:-} "$PYTHON" -m pytest -q -p no:cacheprovider -m slow tests/benchmarks \
    --benchmark-json "$out/$1/$2.json" >"$out/$1-$2.log" 2>&1) || { tail -n 20 "$out/$1-$2.log" >&2; return 1; }
}

# a base without these benchmarks has nothing to be compared with
if [[ ! -d "$base/tests/benchmarks" ]]; then
  echo "::notice title=collbench::the base has no benchmarks: nothing was compared"
  exit 0
fi
for ((i = 0; i < ${ROUNDS:-5}; i++)); do
  order=(base head)
  if ((i % 2)); then order=(head base); fi
  for side in "${order[@]}"; do measure "$side" "$i"; done
done

cd "$out"
collbench() { PYTHONPATH=$head:${PYTHONPATH:-} "$PYTHON" -m collbench "$@"; }
collbench baseline save base --to base.json
collbench calibrate-gate base/*.json --into base.json
code=0
collbench gate base.json head --warn-only --annotations --json-file gate.json --markdown "${GITHUB_STEP_SUMMARY:-summary.md}" || code=$?
if ((code == 3)); then
  # a pull request that adds or drops a benchmark is no error
  echo "::warning title=collbench::no verdict on our own benchmarks; the summary says why"
  exit 0
fi
exit "$code"
