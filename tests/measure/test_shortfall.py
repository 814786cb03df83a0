"""What a budget did not hold is said with what would hold it."""

import re

from collbench.measure.shortfall import Shortfall
from collbench.measure.turns import MARGIN, Work

WORK = [
    Work(("quick", ""), (), 2.0), Work(("middle", "2.30"), (3, 4), 4.0), Work(("slow", ""), (1, 2, 3, 4), 19.4),
    Work(("late", ""), (0, 1, 2, 3, 4), 6.0, is_known=False),
]  # fmt: skip


def test_the_reason_has_the_seconds_and_a_budget_that_holds_all_up_to_it() -> None:
    short = Shortfall(WORK, 5, 245.0, servers_s=10.0)
    told = "the budget of 245 s held 5 launches of 1 of 4 algorithms; this one takes "
    assert short.reason(("middle", "2.30")).startswith(f"{told}4.0 s a launch: --resume RUN --budget ")
    assert short.reason(("slow", "")).startswith(f"{told}19 s a launch: ")
    seconds = int(re.findall(r"--budget (\d+)s", short.reason(("slow", "")))[0])
    cheaper_s = 2 * 4.0 + 5 * 6.0
    assert seconds * 0.8 >= MARGIN * (cheaper_s + 4 * 19.4) + 10.0
    assert seconds <= 240


def test_who_was_never_measured_has_no_reason_of_its_own() -> None:
    short = Shortfall(WORK, 5, 245.0)
    assert short.reason(("late", "")) == ""
    assert short.reason(("nobody", "")) == ""


def test_the_summary_names_who_is_short() -> None:
    assert (
        Shortfall(WORK, 5, 245.0)
        .summary()
        .startswith(
            "the budget of 245 s held 5 launches of 1 of 4 algorithms; fewer of middle 2.30 (4.0 s a launch), "
            "slow (19 s a launch): --resume RUN --budget "
        )
    )
    assert Shortfall(WORK[:1], 5, 245.0).summary() == ""
    assert "held 5 launches of no algorithm" in Shortfall(WORK[2:], 5, 245.0).summary()


def test_launches_of_milliseconds_do_not_take_nothing() -> None:
    quick = [Work(("quick", ""), (1, 2), 0.0312), Work(("quicker", ""), (1, 2), 0.0)]
    assert "takes 0.03 s a launch" in Shortfall(quick, 3, 1.0).reason(("quick", ""))
    assert "takes 0.001 s a launch" in Shortfall(quick, 3, 1.0).reason(("quicker", ""))
