"""The final: ratios with intervals from pairs of launches, and what stands in their place where a launch failed."""

import math
import random
from dataclasses import replace

import pytest

from collbench.gate.paired import paired_ratio
from collbench.results.records import Status
from collbench.tune.final import Final, PairMaker, judge_final, pairs_made
from collbench.tune.outcome import Estimate, Outcome, paste_lines
from collbench.tune.reserve import LaunchCost
from collbench.tune.search import CellTime, Standing, Trial
from collbench.tune.space import Candidate

FAST = Candidate({"NCCL_PROTO": "LL", "NCCL_ALGO": "Ring;allreduce:Tree"})
CELL = "all_reduce/nccl_auto/-/sum/bfloat16/14336/8/graph/122/out/warm/-/-"


def trials(ratio: float, pairs: int = 8, noise: float = 0.01) -> list[Trial]:
    draw = random.Random(1)
    found = []
    for launch in range(pairs):
        for name, us in (("default", 20.0), (FAST.name, 20.0 * ratio)):
            here = us * math.exp(draw.gauss(0, noise))
            cells = {CELL: CellTime(Status.OK, here), CELL.replace("14336", "43008"): CellTime(Status.OK, 2 * here)}
            found.append(Trial(name, launch, cells))
    return found


def test_the_ratio_and_its_interval() -> None:
    final = judge_final(FAST, "default", trials(0.8), 8, paired_ratio)
    assert final.overall is not None
    _, _, ratio, low, high = final.overall
    assert low < 0.8 < high
    assert ratio == pytest.approx(0.8, rel=0.02)
    assert final.is_faster
    assert len(final.cells) == 2


def test_noise_is_no_gain() -> None:
    final = judge_final(FAST, "default", trials(1.0, noise=0.05), 8, paired_ratio)
    assert final.overall is not None
    assert not final.is_faster


def test_a_wrong_launch_is_no_final() -> None:
    made = trials(0.5)
    made[5] = replace(made[5], cells={**made[5].cells, CELL: CellTime(Status.WRONG, reason="rank 3: sums")})
    final = judge_final(FAST, "default", made, 8, paired_ratio)
    assert (final.status, final.overall) == (Status.WRONG, None)
    assert final.reason == f"{FAST.name}, launch 2: rank 3: sums"


def test_too_few_pairs_are_no_final() -> None:
    final = judge_final(FAST, "default", trials(0.5, pairs=7), 8, paired_ratio)
    assert (final.status, final.reason) == (Status.NOT_RUN, "7 of 8 pairs of launches were made")


def test_of_pairs_that_the_budget_cut_enough_are_judged() -> None:
    """11 of 16: ten of them, in which a drift cancels; what is missing is told, and can still be made."""
    final = judge_final(FAST, "default", trials(0.8, pairs=11), 16, paired_ratio)
    assert final.overall is not None
    assert (final.status, final.pairs, final.missing) == (Status.OK, 11, 5)
    assert final.reason == "11 of 16 pairs of launches were made"
    assert final.overall == judge_final(FAST, "default", trials(0.8, pairs=10), 10, paired_ratio).overall
    assert "11 of 16 pairs of launches" in outcome(final).text()


def test_a_failed_launch_counts_before_pairs_that_are_missing() -> None:
    made = trials(0.5, pairs=3)
    made[5] = replace(made[5], cells={**made[5].cells, CELL: CellTime(Status.WRONG, reason="rank 3: sums")})
    final = judge_final(FAST, "default", made, 8, paired_ratio)
    assert (final.status, final.missing) == (Status.WRONG, 0)


DEFAULT = Candidate()


class Pairs:
    """Launches of one second each; `cut` says which one the deadline ends, `wrong` which one is wrong."""

    def __init__(self, cut: int = -1, wrong: int = -1) -> None:
        self.now, self.names, self._cut, self._wrong = 0.0, list[str](), cut, wrong
        self.cost = LaunchCost()
        self.cost.note(0, 9.0, is_ok=True)
        self.cost.note(0, 1.0, is_ok=True)

    def __call__(self, candidate: Candidate, launch: int) -> Trial | None:
        number = len(self.names)
        self.names.append(candidate.name)
        self.now += 1.0
        if number == self._cut:
            return None
        status = Status.WRONG if number == self._wrong else Status.OK
        return Trial(candidate.name, launch, {CELL: CellTime(status, 1.0 if status is Status.OK else math.nan)})

    def make(self, deadline: float, made: "list[Trial] | None" = None) -> list[Trial]:
        maker = PairMaker(self, self.cost, deadline, lambda: self.now)
        return maker.make(DEFAULT, FAST, 8, made or [])


def test_pairs_are_made_there_and_back() -> None:
    pairs = Pairs()
    made = pairs.make(math.inf)
    assert pairs_made(DEFAULT, FAST, made) == 8
    assert pairs.names[:4] == ["default", FAST.name, FAST.name, "default"]


def test_no_pair_is_begun_that_would_end_too_late() -> None:
    pairs = Pairs()
    made = pairs.make(7.5)
    assert (pairs.now, pairs_made(DEFAULT, FAST, made)) == (6.0, 3)
    again = Pairs()
    made = again.make(math.inf, made)
    assert (again.now, pairs_made(DEFAULT, FAST, made)) == (10.0, 8)


def test_a_launch_that_the_deadline_cut_leaves_the_pairs_before_it() -> None:
    made = Pairs(cut=5).make(math.inf)
    assert (len(made), pairs_made(DEFAULT, FAST, made)) == (5, 2)


def test_a_wrong_launch_ends_the_pairs() -> None:
    pairs = Pairs(wrong=4)
    made = pairs.make(math.inf)
    assert len(pairs.names) == 6
    assert judge_final(FAST, "default", made, 8, paired_ratio).status is Status.WRONG


def outcome(final: Final) -> Outcome:
    standing = Standing(FAST, 4, 0.8, us={CELL: 16.0})
    out = Standing(Candidate({"NCCL_PROTO": "LL128"}), 1, math.nan, Status.WRONG, "rank 1: \x1b[31msums")
    default = Standing(Candidate(), 5, 1.0, us={CELL: 20.0})
    estimate = Estimate(FAST.name, CELL, 16.0, 20.7, 19.5, "Ring/LL", "P2P/CUMEM x 8")
    return Outcome("nccl_auto", "pcie", 8, [standing, default, out], [final], True, 96, estimates=[estimate])


def test_the_text_can_be_pasted_and_names_what_is_out() -> None:
    text = outcome(judge_final(FAST, "default", trials(0.8), 8, paired_ratio)).text()
    assert "export NCCL_PROTO=LL\nexport NCCL_ALGO='Ring;allreduce:Tree'" in text
    assert "PROTO=LL128  wrong: rank 1: [31msums" in text
    assert "3 of 96 combinations, 2 measured" in text
    assert "20.7" in text
    assert "P2P/CUMEM x 8" in text


def test_without_a_gain_nothing_is_to_be_pasted() -> None:
    text = outcome(judge_final(FAST, "default", trials(1.1), 8, paired_ratio)).text()
    assert "export" not in text
    assert "leave the settings as they are" in text


def test_json_holds_finite_numbers_only() -> None:
    import json

    data = outcome(judge_final(FAST, "default", trials(0.8), 8, paired_ratio)).as_dict()
    again = json.loads(json.dumps(data, allow_nan=False))
    assert again["kind"] == "tune"
    assert again["environment"] == dict(FAST.settings)
    assert [row["status"] for row in again["rows"]] == ["ok", "ok", "wrong"]
    assert [row["ratio"] for row in again["rows"]] == [0.8, 1.0, None]


def test_values_are_quoted() -> None:
    assert paste_lines({"NCCL_ALGO": "^tree"}) == ["export NCCL_ALGO='^tree'"]
