"""The gate on real launches: comparisons of the same code with itself, and one with an algorithm that is slowed.

    python -m tests.gate_demo                          one of each, on 2 CPU ranks; ./run.sh gate-demo
    python -m tests.gate_demo --same 5 --slowed 0      five self-comparisons, as docs/measurements/gate.md records them
    python -m tests.gate_demo --share-gpu              the same two on 8 ranks that share one GPU

Every verdict table is printed, then a table in Markdown of all comparisons with the spread that was seen. It succeeds
if each self-comparison passes and each slowed one names the slowed algorithm and no other.
"""

import argparse
import datetime as dt
import os
import platform
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from collbench.gate.calibration import blocks_of
from collbench.gate.kept import GATE, read_outcome
from collbench.gate.verdicts import Outcome, Verdict

ROOT = Path(__file__).resolve().parent.parent
VARIABLE = "COLLBENCH_DEMO_SLOWDOWN"
CPU = ("slowed_ring", (
    "--nproc", "2", "--algorithms", "slowed_ring,host_tree,host_one_stage_push", "--sizes", "32K,64K", "--modes",
    "eager", "--calls", "1", "-n", "1000",
), "0.25")  # fmt: skip
GPU = ("slowed_push", (
    "--nproc", "8", "--share-gpu", "--algorithms", "slowed_push,push", "--sizes", "14336,43008", "--modes", "graph",
    "--calls", "122", "-n", "200",
), "0.5")  # fmt: skip
"""Slowed algorithm, options of the sweep, quantile: the quartile sees less of what else a laptop does."""


@dataclass(frozen=True)
class Comparison:
    """One run of the gate."""

    name: str
    seed: int
    code: int
    seconds: float
    outcome: Outcome | None

    def as_expected(self, slowed: str) -> bool:
        """A pass, or just the slowed algorithm named."""
        if self.outcome is None:
            return False
        slower = {c.cell_id.split("/")[1] for c in self.outcome.cells if c.verdict is Verdict.REGRESSED}
        return (self.code, slower) == ((0, set()) if self.name == "same" else (1, {slowed}))

    def row(self) -> str:
        """Of the table in Markdown."""
        if self.outcome is None:
            return f"| {self.name} | {self.seed} | - | {self.seconds:.0f} | {self.code} | none | | | | | |"
        sds = [float(np.std(np.log(c.current_us) - np.log(c.base_us), ddof=1)) for c in self.outcome.cells if c.base_us]
        counts = [f"{self.outcome.count(v)} {v}" for v in Verdict if self.outcome.count(v)]
        needed = "".join(f" {a or '> 1000'} ({b or '> 1000'}) |" for _, a, b in blocks_of(sds)) if sds else " | | |"
        spread = f"{np.median(sds):.3f} | {max(sds):.3f}" if sds else "|"
        return (
            f"| {self.name} | {self.seed} | {self.outcome.blocks} | {self.seconds:.0f} | {self.code} | "
            f"{', '.join(counts)} | {spread} |{needed}"
        )


HEAD = (
    "| comparison | seed | blocks | seconds | exit code | verdicts | sd, median cell | sd, worst cell | "
    "blocks for +3 % (worst) | +5 % | +8 % |\n|---|---|---|---|---|---|---|---|---|---|---|"
)


def compare(args: argparse.Namespace, name: str, seed: int, out: Path) -> Comparison:
    """Run the gate once; its table and its progress go where ours go."""
    _, options, quantile = GPU if args.share_gpu else CPU
    options = (*options, "--allow-busy") if args.allow_busy else options
    packages = (str(ROOT), str(ROOT / "tests" / "packages" / "slowed"), os.environ.get("PYTHONPATH", ""))
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, packages)), "OMP_NUM_THREADS": "1"}
    command = [
        sys.executable, "-m", "collbench", "gate", "--paired", "--baseline", f"env:{VARIABLE}=0", "--candidate",
        f"env:{VARIABLE}={'0' if name == 'same' else '0.2'}", "--quantile", quantile, "--seed", str(seed), "--out",
        str(out), "--html", f"{out}.html", "--blocks", args.blocks, "--", *options,
    ]  # fmt: skip
    start = time.monotonic()
    code = subprocess.run(command, env=environment, check=False, stdin=subprocess.DEVNULL).returncode
    seconds = time.monotonic() - start
    kept = out / GATE
    return Comparison(name, seed, code, seconds, read_outcome(kept) if kept.exists() else None)


def main() -> int:
    """Compare as often as asked for; gives 0 if all came out as they must."""
    parser = argparse.ArgumentParser(description="Run the regression gate on real launches.")
    parser.add_argument("--same", type=int, default=1, metavar="N", help="self-comparisons; default 1")
    parser.add_argument("--slowed", type=int, default=1, metavar="N", help="comparisons with a slowed side; default 1")
    parser.add_argument("--share-gpu", action="store_true", help="8 ranks on one GPU instead of 2 CPU ranks")
    parser.add_argument("--allow-busy", action="store_true", help="although other processes use the GPU")
    parser.add_argument("--blocks", default="8,12,16", metavar="LIST", help="looks of the gate; default 8,12,16")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="default reports/gate-demo-DATE-TIME")
    args = parser.parse_args()
    now = dt.datetime.now(dt.UTC)
    out = (args.out or ROOT / "reports" / f"gate-demo-{now:%Y%m%d-%H%M%S}").absolute()
    out.mkdir(parents=True)
    slowed = (GPU if args.share_gpu else CPU)[0]
    found: list[Comparison] = []
    for name, count in (("same", args.same), ("slowed", args.slowed)):
        for seed in range(1, count + 1):
            say(f"\n== {name}, seed {seed}: {slowed} {'slowed' if name == 'slowed' else 'as it is'} ==")
            found.append(compare(args, name, seed, out / f"{name}-{seed}"))
            say(f"exit code {found[-1].code}, {found[-1].seconds:.0f} s")
    table = "\n".join([HEAD, *(one.row() for one in found)])
    where = f"{now:%Y-%m-%d}, {os.cpu_count()} cores, Linux {platform.release()}, Python {platform.python_version()}"
    text = f"{where}; load average at the end {os.getloadavg()[0]:.1f}\n\n{table}\n"
    (out / "table.md").write_text(text, encoding="utf-8")
    say(f"\n{text}\nkept in {out}")
    wrong = [f"{one.name} with seed {one.seed}" for one in found if not one.as_expected(slowed)]
    if wrong:
        sys.stderr.write(f"gate_demo: not as it must be: {', '.join(wrong)}\n")
    return int(bool(wrong))


def say(text: str) -> None:
    """To stdout at once: the gate's own lines come between."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
