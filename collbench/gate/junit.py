"""The verdicts as JUnit XML, which every CI system shows."""

import re

from collbench.gate.names import change, headline, interval, times
from collbench.gate.verdicts import CellVerdict, Outcome, Verdict
from collbench.results.summary import clean
from collbench.wording import first_of

__all__ = ["junit"]

_FORBIDDEN = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit(outcome: Outcome) -> str:
    """One test case per cell, named by its `cell_id`: REGRESSED fails, INCONCLUSIVE is skipped, INVALID is an error.

    What stands against any verdict is a case `comparison` of its own, so that it is seen with no cell at all.
    """
    from junitparser import JUnitXml, TestSuite

    suite = TestSuite("collbench gate")
    suite.add_property("headline", _text(headline(outcome)))
    suite.add_testcase(_comparison(outcome))
    for cell in outcome.cells:
        suite.add_testcase(_case(cell))
    for cell_id, reason in outcome.not_compared:
        suite.add_testcase(_skipped(cell_id, reason))
    xml = JUnitXml()
    xml.add_testsuite(suite)
    written: bytes = xml.tostring()  # type: ignore[no-untyped-call]  # junitparser types its classes only
    return written.decode()


def _comparison(outcome: Outcome):  # type: ignore[no-untyped-def]  # noqa: ANN202 - same as below
    from junitparser import Error, TestCase

    case = TestCase("comparison", "collbench.gate")
    faults = [_text(fault) for fault in outcome.faults] or ([] if outcome.cells else ["not one cell was compared"])
    if faults:
        # one element: most readers show the first of a test case and no other
        error = Error(first_of(faults), "INVALID")
        error.text = "\n".join(faults)
        case.result = [error]
    return case


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
