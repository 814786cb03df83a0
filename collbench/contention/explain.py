"""A prediction and a measurement -> a sentence and a record; or, where they do not meet, the test to run instead."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from collbench.contention.launches import EARLY, EPILOGUE, STARTS
from collbench.contention.predict import NCCL_PROTOCOLS, Prediction
from collbench.contention.regimes import REGIMES, Finding, Regime, State
from collbench.contention.traffic import Move, Schedule
from collbench.units import format_us

__all__ = ["MOST_RATIO", "Explanation", "Verdict", "explain", "said_once", "suspects"]

MOST_RATIO = 2.0
"""Measured over predicted above which nothing is explained: degraded states reach such factors, contention does not."""

_EITHER = 0.1  # window and links within this part of each other: nobody can tell which of them it was


class Verdict(StrEnum):
    """How far the model explains a measurement."""

    EXPLAINED = "explained"
    FASTER = "faster"
    UNEXPLAINED = "unexplained"
    NOT_MODELLED = "not_modelled"


_COLLAPSE, _READ_FAN_IN, _STAGING = "posted-write collapse", "read fan-in", "staging through system memory"
_LINKS = ("ACS redirect", "downtrained link")
_SHM, _SKEW = "NCCL on shared memory or the network", "entry skew"


@dataclass(frozen=True, slots=True)
class Explanation:
    """`sentence` for people, `record` for programs.

    Where the measurement is not explained, `test` is the degraded state to test for next, and `found` one that the
    run's own probes, logs or samples show. Where nothing is predicted, `common` says what holds of all such cells of a
    run, so that a table can do for their sentences. `asides` are those of its sentences that may hold of other cells
    too.
    """

    verdict: Verdict
    sentence: str
    record: Mapping[str, Any]
    test: Regime | None = None
    found: Finding | None = None
    common: str = ""
    asides: tuple[str, ...] = ()


def said_once(found: Sequence[Explanation]) -> tuple[list[str], list[str]]:
    """Asides of more than one explanation that all those with asides share, and each sentence without them."""
    having = [one.asides for one in found if one.asides]
    shared = [text for text in having[0] if all(text in asides for asides in having)] if len(having) > 1 else []
    sentences = []
    for one in found:
        sentence = one.sentence
        for text in shared if one.asides else ():
            sentence = sentence.replace(f" {text}", "", 1)
        sentences.append(sentence)
    return shared, sentences


def suspects(schedule: Schedule, bottleneck: str, *, links: bool = True, pcie: bool = True) -> tuple[Regime, ...]:
    """Degraded states that fit a schedule which takes far longer than predicted, the likeliest first.

    Where ranks share no links, what is left is that they wait: for a rank that comes late, or for multiprocessors that
    the blocks of others hold. Without `pcie` between them, no state of PCIe fits.
    """
    names = (*(_suspects(schedule, bottleneck) if links else ()), _SKEW)
    return tuple(REGIMES[name] for name in names if pcie or name in {_SHM, _SKEW})


def _suspects(schedule: Schedule, bottleneck: str) -> tuple[str, ...]:
    if schedule.protocol in NCCL_PROTOCOLS:
        return (_SHM, *_LINKS)
    flows = [flow for phase in schedule.phases for flow in phase.flows]
    if any(flow.move is Move.PULL for flow in flows):
        many = len(flows) > 2  # noqa: PLR2004 - one pair reads both ways
        return (_READ_FAN_IN, _STAGING, *_LINKS) if many else (_STAGING, *_LINKS)
    targets = Counter(flow.src for flow in flows)
    if max(targets.values(), default=0) > 1 and "gpu" not in bottleneck:
        return (_COLLAPSE, *_LINKS)
    return (_LINKS[1], _LINKS[0])


def explain(
    algorithm: str,
    size_bytes: int,
    schedule: Schedule,
    prediction: Prediction | None,
    measured_us: float | None = None,
    *,
    links: bool = True,
    pcie: bool = True,
    alone: bool = False,
    eager: bool = False,
    reason: str = "the model has no parameters for it here",
    findings: Sequence[Finding] = (),
) -> Explanation:
    """Explain one algorithm at one size.

    `links` is false where ranks share one GPU or run on processors, `pcie` where their links are none of PCIe; `alone`
    says that it was a call by itself, not one of a chain, `eager` that the host launched each.

    Without a prediction nothing is blamed, for that `reason`. Above `MOST_RATIO` no term is named: of the degraded
    states that fit, one that `findings` show, else the first that they leave untested, with the test to run.
    """
    name = f"{algorithm}, {size_bytes:,} B"
    if prediction is None:
        return _not_modelled(name, algorithm, size_bytes, measured_us, reason)
    ratio = None if measured_us is None else measured_us / prediction.total_us
    record = _record(algorithm, size_bytes, prediction, measured_us)
    if ratio is not None and ratio > MOST_RATIO:
        link = prediction.bottleneck.link if prediction.bottleneck else ""
        fitting = suspects(schedule, link, links=links, pcie=pcie)
        return _unexplained(name, record, ratio, fitting, findings, alone=alone, eager=eager)
    low, high = prediction.interval_us
    verdict = Verdict.FASTER if measured_us is not None and measured_us < low else Verdict.EXPLAINED
    sentence = f"{name}: {_times(prediction, measured_us)}: {_terms(schedule, prediction)}."
    asides = _asides(prediction, links)
    sentence += _ifs(prediction) + "".join(f" {text}" for text in asides)
    if measured_us is not None and not low <= measured_us <= high:
        sentence += (
            f" Unexplained: {measured_us - prediction.total_us:+.1f} us{_ALONE if alone else _narrower(prediction)}."
        )
    return Explanation(verdict, sentence, {"verdict": str(verdict), **record, "sentence": sentence}, asides=asides)


def _not_modelled(name: str, algorithm: str, size_bytes: int, measured_us: float | None, reason: str) -> Explanation:
    told = "" if measured_us is None else f"{format_us(measured_us)} us measured, "
    sentence = f"{name}: {told}not predicted: {reason}. No link is blamed."
    record = {
        "verdict": str(Verdict.NOT_MODELLED), "algorithm": algorithm, "bytes": size_bytes, "measured_us": measured_us,
        "predicted_us": None, "sentence": sentence,
    }  # fmt: skip
    return Explanation(Verdict.NOT_MODELLED, sentence, record, common=f"Not predicted: {reason}. No link is blamed.")


def _unexplained(
    name: str, record: Mapping[str, Any], ratio: float, fitting: Sequence[Regime], findings: Sequence[Finding],
    *, alone: bool, eager: bool,
) -> Explanation:  # fmt: skip
    of = {finding.regime: finding for finding in findings}
    known = [of[regime.name] for regime in fitting if regime.name in of]
    present = [one for one in known if one.state is State.PRESENT]
    found = next((one for one in present if _reaches(one, ratio)), None)
    excluded = {one.regime for one in known if one.state is State.ABSENT}
    excluded |= {one.regime for one in present if not _reaches(one, ratio)}
    test = None if found or alone else next((regime for regime in fitting if regime.name not in excluded), None)
    step = (
        f"It is{_ALONE.removeprefix(',')}."
        if alone and not found
        else _next_step(found, test, sorted(excluded), eager=eager)
    )
    sentence = (
        f"{name}: {format_us(record['measured_us'])} us measured, {format_us(record['predicted_us'])} us predicted, "
        f"{ratio:.1f} times as much: contention does not explain it. {step}"
    )
    kept = {k: v for k, v in record.items() if k not in {"terms_us", "bottleneck", "without_sharing_us"}}
    words = test and {"regime": test.name, "test": test.test, "flag": test.flag, "command": test.command}
    more = {"run_instead": words, "found": found and found.row(), "sentence": sentence}
    return Explanation(
        Verdict.UNEXPLAINED, sentence, {"verdict": str(Verdict.UNEXPLAINED), **kept, **more}, test, found
    )


def _reaches(finding: Finding, ratio: float) -> bool:
    """Whether a state that was seen can make so much of it: ranks 24 % apart cost a third, not a factor of 7."""
    return finding.regime != _SKEW or finding.value is None or ratio * (1 - finding.value) <= MOST_RATIO


def _next_step(found: Finding | None, test: Regime | None, excluded: Sequence[str], *, eager: bool) -> str:
    if found is not None:
        return f"This run shows {found.regime}: {found.line}."
    but = f"The run shows no {' and no '.join(excluded)} that would do. " if excluded else ""
    if test is None and eager:
        return f"{but}The host launched each call, which takes one host far longer than another: see captured chains."
    if test is None:
        return f"{but}No other state is known that fits: measure again with nothing else running, else the model fails."
    return f"{but}Test for {test.name}: {test.test} ({test.flag}); {test.command} does."


def _record(algorithm: str, size_bytes: int, prediction: Prediction, measured_us: float | None) -> dict[str, Any]:
    low, high = prediction.interval_us
    row = prediction.row()
    return {
        "algorithm": algorithm, "bytes": size_bytes, "measured_us": measured_us, "predicted_us": row["total_us"],
        "low_us": low, "high_us": high, "terms_us": row["terms_us"], "bottleneck": row["bottleneck"],
        "without_sharing_us": prediction.total_us - prediction.terms_us["queueing"],
        "unexplained_us": None if measured_us is None else measured_us - prediction.total_us,
        "prior_share": row["prior_share"],
    }  # fmt: skip


def _times(prediction: Prediction, measured_us: float | None) -> str:
    low, high = (format_us(us) for us in prediction.interval_us)
    measured = f"measured {format_us(measured_us)}, " if measured_us is not None else ""
    return f"{format_us(prediction.total_us)} us predicted ({measured}90 % interval {low} to {high})"


def _terms(schedule: Schedule, prediction: Prediction) -> str:
    words = {
        "launch": _launch(prediction), "sync": "synchronisation {}", "path": "latency of the wires {}",
        "port": f"moving a rank's own {_own_kib(schedule):.0f} KiB {{}}", "queueing": _queueing(prediction),
        "efficiency": "what links lose under such traffic {}", "window": "waiting for reads in flight {}",
        "reduce": _reduce(prediction),
        "protocol": f"protocol {schedule.protocol} {{}}" if schedule.protocol else "protocol {}",
    }  # fmt: skip
    terms = ((words[name], us) for name, us in prediction.terms_us.items() if us >= _LEAST_US)
    return ", ".join(text.format(format_us(us)) for text, us in terms)


_LEAST_US = 0.05


def _launch(prediction: Prediction) -> str:
    """Launch, and of a call alone how much of it is its start."""
    us = next((prediction.parts[name].us for name in STARTS if name in prediction.parts), None)
    return "launch {}" if us is None else f"launch {{}} ({format_us(us)} of it the start of a call alone)"


def _reduce(prediction: Prediction) -> str:
    """Sums, and how much of it is work fused behind them."""
    words = "summing {}" if prediction.bottleneck else "moving and summing in the GPU's memory {}"
    fused = next((part.us for name, part in prediction.parts.items() if name.endswith(EPILOGUE)), None)
    return words if fused is None else f"{words} ({format_us(fused)} of it what is fused behind)"


def _queueing(prediction: Prediction) -> str:
    b = prediction.bottleneck
    if b is None:
        return "queueing {}"
    return f"queueing {{}} (the path {b.link}, shared by {b.flows} flows, carries {b.gbps:.1f} GB/s meanwhile)"


def _own_kib(schedule: Schedule) -> float:
    sent: Counter[int] = Counter()
    for phase in schedule.phases:
        for flow in phase.flows:
            sent[flow.src] += round(flow.bytes)
    return max(sent.values(), default=0) / 1024


def _ifs(prediction: Prediction) -> str:
    """What would be otherwise, of this prediction alone."""
    terms = prediction.terms_us
    moving = terms["port"] + terms["queueing"] + terms["efficiency"]
    text = ""
    if terms["queueing"] >= _LEAST_US:
        text += f" Without sharing it would take {format_us(prediction.total_us - terms['queueing'])} us."
    if 0 < terms["window"] < _EITHER * (moving + terms["window"]):
        text += " Either the links or the read window hold it back: one GPU that reads from 1 to 4 peers would tell."
    return text


def _asides(prediction: Prediction, links: bool) -> tuple[str, ...]:  # noqa: FBT001 - private
    where = () if links else ("Ranks share one GPU: no link is involved.",)
    early = (_OVERLAPS,) if any(EARLY in name for name in prediction.parts) else ()
    return (*where, *early, f"{prediction.prior_share:.0%} of the prediction rests on priors.")


def _narrower(prediction: Prediction) -> str:
    """Parameters help where it is they that are unknown; what measured ones miss, the model misses."""
    if prediction.prior_share >= _MOSTLY:
        return "; measured parameters would narrow it"
    return ", which the model does not know of"


_OVERLAPS = "Its launch overlaps the call before it: programmatic dependent launch."
_MOSTLY = 0.5
_ALONE = ", a single call: its start and the ranks' arrival differ between hosts more than chains do; see those"
