#!/usr/bin/env bash
# What action.yml runs: one gate, its files below $RESULTS, its summary and annotations on the run's page.
set -euo pipefail

if [[ -z "${BASELINE_SIDE:-}${CANDIDATE_SIDE:-}" && (-z "${BASE:-}" || -z "${CURRENT:-}") ]]; then
  echo "::error title=collbench::give base and current (files), or baseline-side and candidate-side (launched now)"
  printf 'verdict=INVALID\nexit-code=2\n' >>"$GITHUB_OUTPUT"
  exit 2
fi
mkdir -p "$RESULTS"
if [[ -z "${PYTHON:-}" ]]; then
  python3 -m venv "$RUNNER_TEMP/collbench"
  PYTHON="$RUNNER_TEMP/collbench/bin/python"
  "$PYTHON" -m pip install --quiet "$ACTION"
fi

# at spaces and line breaks, without a shell's expansions
read -r -a options <<<"$(tr '\n' ' ' <<<"${OPTIONS:-}")"
read -r -a sweep <<<"$(tr '\n' ' ' <<<"${SWEEP_OPTIONS:-}")"
common=(--json-file "$RESULTS/verdict.json" --junit "$RESULTS/junit.xml" --html "$RESULTS/page.html" --annotations
  --markdown "$GITHUB_STEP_SUMMARY" "${options[@]}")
code=0
if [[ -n "${BASELINE_SIDE:-}" || -n "${CANDIDATE_SIDE:-}" ]]; then
  "$PYTHON" -m collbench gate --paired --baseline "$BASELINE_SIDE" --candidate "$CANDIDATE_SIDE" \
    --out "$RESULTS/launches" "${common[@]}" -- "${sweep[@]}" || code=$?
else
  "$PYTHON" -m collbench gate "$BASE" "$CURRENT" "${common[@]}" || code=$?
fi

verdict=INVALID
if [[ -f "$RESULTS/verdict.json" ]]; then
  verdict=$("$PYTHON" -c 'import json, sys; print(json.load(open(sys.argv[1]))["verdict"])' "$RESULTS/verdict.json")
fi
{
  echo "verdict=$verdict"
  echo "exit-code=$code"
} >>"$GITHUB_OUTPUT"
exit "$code"
