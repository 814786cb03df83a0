"""Whole searches on a machine of the test's own, whose clock its launches advance: where the budget goes."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from collbench.algorithms.base import registry
from collbench.errors import InvalidError
from collbench.gate.paired import paired_ratio
from collbench.measure.plan import Options
from collbench.measure.team import Place
from collbench.results.records import Fabric, Mode, Samples, Status
from collbench.results.store import RunFolder
from collbench.topology.graph import Topology
from collbench.topology.machine import Machine
from collbench.tune.outcome import Outcome
from collbench.tune.space import Candidate, Space
from collbench.tune.trials import Workplace
from collbench.tune.tune_plan import TunePlan
from collbench.tune.tuning import tune

OPTIONS = Options(sizes=(1024,), modes=(Mode.EAGER,), calls=(4,), iterations=5)
SPACE = Space({
    "NCCL_PROTO": ("LL", "LL128", "Simple"), "NCCL_MAX_CTAS": ("1", "2", "4", "8"), "NCCL_NTHREADS": ("128", "256"),
})  # fmt: skip


class Imagined(Workplace):
    """Launches take `launch_s`, the first one `first_s` more; the deadline cuts them as a supervisor does."""

    def __init__(self, *, launch_s: float = 2.5, first_s: float = 2.0, faster: str = "PROTO=LL") -> None:
        here = Machine(Topology((), ()), Fabric.HOST, 2)
        super().__init__(registry()["host_one_stage_push"], here, (), OPTIONS, Place(ranks=2, local_ranks=2))
        self.now, self.made, self.begun = 0.0, 0, False
        self.launch_s, self.first_s, self.faster = launch_s, first_s, faster
        self.slower_from: Callable[[str, int], float] = lambda _name, _launch: 0.0

    def clock(self) -> float:
        return self.now

    def again(self) -> "Imagined":
        """The same machine in another process."""
        self.begun, self.made = False, 0
        return self

    def launch(self, folder: RunFolder, candidates: Sequence[Candidate], launches: int) -> None:
        (candidate,) = candidates
        done = {(s.cell_id, s.launch) for s in folder.samples() if s.status is not Status.NOT_RUN}
        for cell in self.plan(candidates).cells:
            for launch in range(launches):
                if (cell.cell_id, launch) not in done:
                    folder.append(self._samples(candidate, cell.cell_id, launch))

    def _samples(self, candidate: Candidate, cell_id: str, launch: int) -> Samples:
        took = self.launch_s + (0.0 if self.begun else self.first_s) + self.slower_from(candidate.name, launch)
        self.begun, self.now, self.made = True, min(self.now + took, self.deadline + 2.0), self.made + 1
        if self.now > self.deadline:
            return Samples(cell_id, launch, Status.NOT_RUN, "the budget was used up", calls=4)
        us = (16.0 if candidate.name == self.faster else 20.0) * (1 + 0.001 * (self.made % 3))
        return Samples(cell_id, launch, Status.OK, "", (), 4, ((us,) * 5,) * 2)


def search(place: Imagined, folder: Path, budget_s: float, pairs: int = 8) -> tuple[Outcome, list[str]]:
    said: list[str] = []
    plan = TunePlan("host_one_stage_push", SPACE, 60, 0, pairs, 2, OPTIONS.as_dict())
    return tune(plan, place, folder, budget_s, paired_ratio, said.append, place.clock), said


def test_a_slow_first_launch_costs_no_final(tmp_path: Path) -> None:
    """65 s, launches of 2.5 s, the first one 4.5 s: there is room for 16 launches of the final, and they are made."""
    place = Imagined()
    outcome, _ = search(place, tmp_path / "run", 65.0)
    (final,) = outcome.finals
    assert (final.candidate.name, final.pairs, final.status) == ("PROTO=LL", 8, Status.OK)
    assert outcome.winner is final
    assert 57.0 <= place.now <= 65.0


def test_a_budget_without_room_for_a_final_is_the_searchs_and_says_so_first(tmp_path: Path) -> None:
    place = Imagined()
    outcome, said = search(place, tmp_path / "run", 30.0)
    assert said[0].startswith("a final of 8 pairs of launches takes about 44 s here")
    assert said[0].endswith("a final wants --budget 70s")
    assert 27.5 <= place.now <= 30.0
    assert f"--resume {tmp_path / 'run'} --budget " in outcome.note
    assert "0 of 8 pairs of the final of PROTO=LL" in outcome.note
    assert outcome.winner is None
    before = place.now
    outcome, said = search(place.again(), tmp_path / "run", 70.0)
    assert outcome.winner is not None
    assert "final" not in said[0]
    assert place.now - before <= 70.0


@pytest.mark.parametrize("budget_s", [20.0, 35.0, 50.0, 58.0, 62.0, 65.0, 90.0, 150.0, 300.0])
@pytest.mark.parametrize("first_s", [0.0, 2.0, 12.0])
def test_no_budget_is_left_without_a_final(budget_s: float, first_s: float, tmp_path: Path) -> None:
    place = Imagined(first_s=first_s)
    outcome, _ = search(place, tmp_path / "run", budget_s)
    assert place.now <= budget_s
    assert outcome.winner is not None or place.now > budget_s - 2 * place.launch_s


def test_where_nothing_is_faster_all_of_the_budget_is_the_searchs(tmp_path: Path) -> None:
    place = Imagined(faster="default")
    outcome, _ = search(place, tmp_path / "run", 65.0)
    assert place.now > 62.0
    assert not outcome.finals
    assert outcome.note.startswith("nothing that was measured is faster than the default; go on with")
    outcome, _ = search(place.again(), tmp_path / "run", 1000.0)
    assert outcome.finished
    assert "leave the settings as they are" in outcome.text()


def test_pairs_that_were_made_are_kept_when_the_machine_becomes_slow(tmp_path: Path) -> None:
    """In the final launches take twice as long: some pairs are missing, and a later call makes only those."""
    place = Imagined()
    place.slower_from = lambda _name, _launch: 2.5 if place.made > 8 else 0.0
    outcome, _ = search(place, tmp_path / "run", 65.0)
    (final,) = outcome.finals
    assert final.status is Status.NOT_RUN
    assert 0 < final.pairs < 8
    assert f"room for {final.pairs} of 8 pairs of the final of PROTO=LL; go on with" in outcome.note
    assert place.now <= 65.0
    kept = outcome.finals[0].pairs
    (path,) = (tmp_path / "run").glob("final-*")
    lines = (path / "samples.jsonl").read_text().count("\n")
    assert lines == 2 * kept
    outcome, _ = search(place.again(), tmp_path / "run", 300.0)
    assert outcome.winner is not None
    assert (path / "samples.jsonl").read_text().count("\n") == 16


def test_a_launch_that_hangs_at_the_deadline_is_cut_and_made_again(tmp_path: Path) -> None:
    """What the budget cut is open, not out; it counts neither as a launch nor against the candidate."""
    place = Imagined()
    place.slower_from = lambda name, _launch: 500.0 if name == "PROTO=LL128" else 0.0
    outcome, said = search(place, tmp_path / "run", 40.0)
    assert place.now == 42.0
    assert said[-1] == "PROTO=LL128, launch 0: cut off by the budget"
    assert outcome.as_dict()["rows"]
    told = {one.candidate.name: one for one in outcome.standings}
    assert (told["PROTO=LL128"].status, told["PROTO=LL128"].launches) == (Status.NOT_RUN, 0)
    _, said = search(place.again(), tmp_path / "run", 40.0)
    assert len(said) > 8, "it hangs again, and takes the time of all others"
    place.slower_from = lambda _name, _launch: 0.0
    outcome, _ = search(place.again(), tmp_path / "run", 1000.0)
    told = {one.candidate.name: one for one in outcome.standings}
    assert told["PROTO=LL128"].is_in
    assert told["PROTO=LL128"].launches == 1


def test_a_hang_in_the_final_ends_with_the_budget(tmp_path: Path) -> None:
    place = Imagined()
    place.slower_from = lambda name, launch: 500.0 if name == "PROTO=LL" and launch == 4 else 0.0
    outcome, _ = search(place, tmp_path / "run", 200.0)
    assert place.now == 202.0
    (final,) = outcome.finals
    assert (final.status, final.pairs, final.missing) == (Status.NOT_RUN, 4, 4)


def test_a_budget_that_ends_in_the_first_launch_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(InvalidError, match="give a longer --budget"):
        search(Imagined(), tmp_path / "run", 1.0)


def test_of_candidates_alike_the_one_that_sets_least_is_the_finalist(tmp_path: Path) -> None:
    class Alike(Imagined):
        def _samples(self, candidate: Candidate, cell_id: str, launch: int) -> Samples:
            made = super()._samples(candidate, cell_id, launch)
            us = 15.95 if candidate.name == "PROTO=LL+MAX_CTAS=2" else 16.0 if candidate.name == "PROTO=LL" else 20.0
            return Samples(cell_id, launch, made.status, made.reason, (), 4, ((us,) * 5,) * 2)

    outcome, _ = search(Alike(), tmp_path / "run", 10_000.0)
    assert outcome.standings[0].candidate.name == "PROTO=LL+MAX_CTAS=2"
    assert outcome.winner is not None
    assert outcome.winner.candidate.name == "PROTO=LL"


def test_the_outcome_in_the_folder_is_finite_json(tmp_path: Path) -> None:
    search(Imagined(), tmp_path / "run", 30.0)
    text = (tmp_path / "run" / "tune.json").read_text()
    assert "NaN" not in text
    assert json.loads(text)["outcome"]["finals"][0]["pairs"] == 0
