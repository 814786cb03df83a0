"""Lines of probes: what is written is read back, and what is damaged is named."""

import os
from pathlib import Path

import pytest

from collbench.errors import InvalidError, UsageError
from collbench.results.probes import PROBES, Probe, append_probe, probe_rows, read_probes
from collbench.results.records import Status

SOLO = Probe("bandwidth.copy", "solo", 0, 1, ((0, 1),), 1 << 20, 54.0, "GB/s", 0.02)
HUNG = Probe("flag", "pair", 0, 1, ((0, 1),), status=Status.HUNG, reason="rank 0 waited")


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    for probe in (SOLO, HUNG):
        append_probe(tmp_path, probe)
    assert read_probes(tmp_path) == ([SOLO, HUNG], [])


def test_a_damaged_line_costs_itself(tmp_path: Path) -> None:
    append_probe(tmp_path, SOLO)
    with (tmp_path / PROBES).open("a") as file:
        file.write('{"name": "flag"}\n')
    append_probe(tmp_path, HUNG)
    found, problems = read_probes(tmp_path)
    assert found == [SOLO, HUNG]
    assert "line 2" in problems[0]


@pytest.mark.parametrize(
    "change", [{"value": None}, {"value": -1.0}, {"status": "hung"}, {"spread": -0.1}, {"src": "x"}]
)
def test_numbers_that_make_no_sense_are_refused(change: dict[str, object]) -> None:
    with pytest.raises(InvalidError):
        Probe.from_row({**SOLO.row(), **change})


def test_no_file_says_what_to_run(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="collbench probe"):
        read_probes(tmp_path)


def test_table_has_a_line_for_each() -> None:
    text = probe_rows([SOLO, HUNG])
    assert [line.split()[0] for line in text.splitlines()] == ["probe", "bandwidth.copy", "flag"]
    assert "hung: rank 0 waited" in text


def test_a_pipe_in_place_of_the_file_is_neither_read_nor_written(tmp_path: Path) -> None:
    """Both would wait for its other end."""
    os.mkfifo(tmp_path / PROBES)
    with pytest.raises(InvalidError, match="is no regular file"):
        append_probe(tmp_path, Probe("flag", value=1.0))
    with pytest.raises(InvalidError, match="is no regular file"):
        read_probes(tmp_path)
