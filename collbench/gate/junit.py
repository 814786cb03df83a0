"""The verdicts as JUnit XML, which every CI system shows."""

import re

from collbench.gate.names import change, headline, interval, times
from collbench.gate.verdicts import CellVerdict, Outcome, Verdict
from collbench.results.summary import clean

__all__ = ["junit"]

_FORBIDDEN = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit(outcome: Outcome) -> str:
    """One test case per cell, named by its `cell_id`: REGRESSED fails, INCONCLUSIVE is skipped, INVALID is an error.

    What stands against any verdict is a case `comparison` of its own, so that it is seen with no cell at all.
    """
    from junitparser import Error, JUnitXml, TestCase, TestSuite

    suite = TestSuite("collbench gate")
    suite.add_property("headline", _text(headline(outcome)))
    comparison = TestCase("comparison", "collbench.gate")
    comparison.result = [Error(_text(fault), "INVALID") for fault in outcome.faults]
    if not outcome.cells and not outcome.faults:
        comparison.result = [Error("not one cell was compared", "INVALID")]
    suite.add_testcase(comparison)
    for cell in outcome.cells:
        suite.add_testcase(_case(cell))
    for cell_id, reason in outcome.not_compared:
        suite.add_testcase(_skipped(cell_id, reason))
    xml = JUnitXml()
    xml.add_testsuite(suite)
    written: bytes = xml.tostring()  # type: ignore[no-untyped-call]  # junitparser types its classes only
    return written.decode()


def _case(cell: CellVerdict):  # type: ignore[no-untyped-def]  # noqa: ANN202 - junitparser's TestCase, imported inside
    from junitparser import Error, Failure, Skipped, TestCase

    case = TestCase(_text(cell.cell_id), "collbench.gate.control" if cell.control else "collbench.gate")
    told = _told(cell)
    results = {
        Verdict.REGRESSED: Failure, Verdict.INVALID: Error, Verdict.INCONCLUSIVE: Skipped,
    }  # fmt: skip
    if cell.verdict in results:
        case.result = [results[cell.verdict](told, str(cell.verdict))]
    else:
        case.system_out = f"{cell.verdict}: {told}"
    return case


def _skipped(cell_id: str, reason: str):  # type: ignore[no-untyped-def]  # noqa: ANN202 - same
    from junitparser import Skipped, TestCase

    case = TestCase(_text(cell_id), "collbench.gate")
    case.result = [Skipped(_text(reason), "not compared")]
    return case


def _told(cell: CellVerdict) -> str:
    base, now = times(cell)
    numbers = "" if cell.ratio is None else f"{base} -> {now} us, {change(cell)} (95 %: {interval(cell)})"
    return _text("; ".join(filter(None, (numbers, cell.reason))) or "no change")


def _text(words: str) -> str:
    return _FORBIDDEN.sub("", clean(words))
