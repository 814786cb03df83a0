"""Lines of samples: what is written comes back, and every fault is named."""

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collbench.errors import InvalidError
from collbench.results import lines
from collbench.results.records import Flag, Samples, Status

_TIMES = st.floats(0, 1e9, allow_nan=False)
_LATENCIES = st.integers(1, 4).flatmap(
    lambda n: st.lists(st.lists(_TIMES, min_size=n, max_size=n).map(tuple), min_size=1, max_size=4).map(tuple)
)


@settings(deadline=None)
@given(
    st.text(max_size=20), st.integers(0, 100), st.lists(st.sampled_from(list(Flag)), max_size=3), _LATENCIES
)  # fmt: skip
def test_a_line_comes_back_bit_for_bit(
    cell_id: str, launch: int, flags: list[Flag], latency_us: tuple[tuple[float, ...], ...]
) -> None:
    """Encode and decode are inverse, for any text and any finite times."""
    samples = Samples(cell_id, launch, Status.OK, "", tuple(flags), 122, latency_us)

    assert lines.decode(json.loads(lines.encode(samples))) == samples


def test_keys_are_exactly_the_documented_ones() -> None:
    """docs/design.md section 4 names them; other people's scripts read them."""
    line = json.loads(lines.encode(Samples("c", 0, Status.HUNG, "no answer for 10 s")))

    assert list(line) == ["cell_id", "launch", "status", "reason", "flags", "calls", "latency_us"]


def _line(**changes: object) -> dict[str, Any]:
    good: dict[str, Any] = {
        "cell_id": "c",
        "launch": 0,
        "status": "ok",
        "reason": "",
        "flags": [],
        "calls": 1,
        "latency_us": [[1.0]],
    }
    return good | changes


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"latency_us": [[float("nan")]]}, "not finite"),
        ({"latency_us": [[float("inf")]]}, "not finite"),
        ({"latency_us": [[-1.0]]}, "below zero"),
        ({"latency_us": [["1.0"]]}, "not a number"),
        ({"latency_us": [[True]]}, "not a number"),
        ({"latency_us": [[1.0], [1.0, 2.0]]}, "expected the same"),
        ({"latency_us": [[]]}, "expected the same"),
        ({"latency_us": 5}, "list of ranks"),
        ({"latency_us": []}, "only an ok cell has samples"),
        ({"status": "hung"}, "only an ok cell has samples"),
        ({"status": "fine"}, "status 'fine' is unknown"),
        ({"status": ["ok"]}, "is unknown"),
        ({"flags": ["loud"]}, "flag 'loud' is unknown"),
        ({"flags": "noisy"}, "flags a list"),
        ({"launch": -1}, "launch is '-1'"),
        ({"launch": True}, "launch is 'True'"),
        ({"calls": 0}, "calls is '0'"),
        ({"calls": 10**30}, "calls is"),
        ({"cell_id": 7}, "must be text"),
    ],
)
def test_a_line_that_makes_no_sense_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidError, match=message):
        lines.decode(_line(**changes))


def test_a_missing_key_is_named_and_an_unknown_one_ignored() -> None:
    with pytest.raises(InvalidError, match="'flags' is missing"):
        lines.decode({k: v for k, v in _line().items() if k != "flags"})
    assert lines.decode(_line(skew_us=3)).latency_us == ((1.0,),)


def test_times_that_are_none_are_not_written() -> None:
    with pytest.raises(InvalidError, match="not finite"):
        lines.encode(Samples("c", 0, Status.OK, latency_us=((float("nan"),),)))


@settings(deadline=None)
@given(st.binary(max_size=300))
def test_noise_raises_the_named_error_only(noise: bytes) -> None:
    with contextlib.suppress(InvalidError):
        assert lines.decode(lines.parse_json(noise)).launch >= 0


def test_deep_nesting_is_refused_without_a_crash() -> None:
    for text in (b'{"a":' * 200_000, b"[" * 1_000_000):
        with pytest.raises(InvalidError, match=r"nested too deep|not JSON"):
            lines.parse_json(text)


def test_a_damaged_line_costs_itself_only(tmp_path: Path) -> None:
    path = tmp_path / "samples.jsonl"
    good = json.dumps(_line()).encode()
    path.write_bytes(good + b"\n\xff\xfe garbage\n" + good + b"\n")
    parsed = lines.read(path, lines.decode)

    assert [number for number, _ in parsed.records] == [1, 3]
    assert len(parsed.problems) == 1
    assert parsed.problems[0].startswith("samples.jsonl line 2: not JSON")
    assert parsed.whole_bytes == path.stat().st_size


def test_a_cut_last_line_is_the_cell_in_flight(tmp_path: Path) -> None:
    """It is named, left out, and `whole_bytes` says where it begins; a line that lacks only its end counts."""
    path = tmp_path / "samples.jsonl"
    good = json.dumps(_line()).encode()
    path.write_bytes(good + b"\n" + good[:30])
    parsed = lines.read(path, lines.decode)

    assert len(parsed.records) == 1
    assert "line 2: cut off while it was written" in parsed.problems[0]
    assert parsed.whole_bytes == len(good) + 1

    path.write_bytes(good + b"\n" + good)
    whole = lines.read(path, lines.decode)

    assert (len(whole.records), whole.problems, whole.newline) == (2, (), True)


def test_a_line_of_50_mib_is_refused_or_skipped(tmp_path: Path) -> None:
    path = tmp_path / "samples.jsonl"
    huge = b"[" + b"1," * (25 << 20) + b"1]\n"
    path.write_bytes(huge)
    with pytest.raises(InvalidError, match="line 1: longer than 32 MiB"):
        lines.read(path, lines.decode)

    path.write_bytes(huge + json.dumps(_line()).encode() + b"\n")
    parsed = lines.read(path, lines.decode)

    assert [number for number, _ in parsed.records] == [2]
    assert parsed.whole_bytes == path.stat().st_size


def test_many_damaged_lines_are_counted_not_listed(tmp_path: Path) -> None:
    path = tmp_path / "samples.jsonl"
    path.write_bytes(json.dumps(_line()).encode() + b"\n" + b"x\n" * 1000)
    problems = lines.read(path, lines.decode).problems

    assert len(problems) == 21
    assert problems[-1] == "samples.jsonl: 980 more lines are damaged"
