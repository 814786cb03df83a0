"""The page of a machine that nobody has measured: says so, answers, explains, and is the same twice."""

import csv
import html
import io
import re
from collections.abc import Sequence
from urllib.parse import unquote

import pytest

from collbench.algorithms.predictions import Forecast
from collbench.doctor.forecasts import Diagnosis
from collbench.report.forecast import STEP_BYTES, cast, headline, nearest
from collbench.report.forecast_page import forecast_page
from collbench.results.records import Mode
from collbench.topology import catalog
from collbench.topology.graph import Topology

SIZES = (1024, 8192, 65536, 524288, 4194304)
COMMAND = ("collbench", "predict", "--topology", "two-flat-gen5-switches", "--html", "/srv/joe/page.html")


def topology(name: str) -> Topology:
    return catalog.load(catalog.find(name))


def build(name: str, sizes: Sequence[int] = SIZES, mode: Mode = Mode.GRAPH) -> str:
    return forecast_page(Forecast(topology(name), mode=mode), sizes, COMMAND)


@pytest.fixture(scope="module")
def page() -> str:
    return build("two-flat-gen5-switches")


def section(page: str, name: str) -> str:
    return html.unescape(page.partition(f'<h2 id="{name}">')[2].partition("</section>")[0])


def test_it_says_at_once_that_nothing_was_measured(page: str) -> None:
    header = page.partition("</header>")[0]

    assert "predicted, not measured</b>" in header
    assert "<h1>By the model, " in header
    assert "Predicted, not measured: every time on this page comes from the model" in header
    assert header.count("rests on priors, which are numbers of other machines and assumptions; the rest on ") == 1
    assert header.count("the rest on what was measured of these links.") == 1
    assert "<title>collbench: two-flat-gen5-switches, predicted</title>" in header


def test_sections_stand_in_the_order_of_a_run(page: str) -> None:
    order = ["fastest", "worth", "machine", "latency", "crossovers", "why", "not-run", "environment", "all"]

    assert re.findall(r'<h2 id="([\w-]+)"', page) == order


def test_the_same_topology_gives_the_same_page(page: str) -> None:
    assert build("two-flat-gen5-switches") == page
    assert len(page.encode()) < 600_000


def test_the_link_between_the_switches_is_coloured_with_its_load(page: str) -> None:
    """At 14K latencies decide, so the link is that of the first size from there on at which it holds anything back."""
    machine = section(page, "machine")

    coloured = r"Coloured: switch[01] -> root[01], which holds \w+ back at \d+K, by the model: \d+ flows"
    assert re.search(coloured, machine)
    assert re.search(r'<g id="drawing-wires-link-switch[01]-root[01]">(?:(?!</g>)[\s\S])*class="l pcie hot', machine)
    assert "At which speed" not in machine


def test_the_table_of_sizes_names_floor_link_and_gain(page: str) -> None:
    """With a token's and a verify step's size, which nobody asked for."""
    fastest = section(page, "fastest")

    assert all(f">{text}</th>" in fastest for text in ("1K", "14K", "42K", "4M"))
    assert "floor, us" in fastest
    assert "against nccl_" in fastest
    assert re.search(r"\d \[\d", fastest)


def test_every_row_is_in_the_csv_and_terms_add_up(page: str) -> None:
    link = html.unescape(page.partition('href="data:text/csv;charset=utf-8,')[2].partition('"')[0])
    rows = list(csv.DictReader(io.StringIO(unquote(link))))
    forecast = Forecast(topology("two-flat-gen5-switches"))

    assert {int(row["bytes"]) for row in rows} == {*SIZES, *STEP_BYTES}
    assert {row["algorithm"] for row in rows} == {algorithm.name for algorithm in forecast.algorithms}
    for row in rows:
        terms = [float(row[f"{name}_us"]) for name in ("launch", "sync", "path", "port", "queueing", "efficiency")]
        terms += [float(row[f"{name}_us"]) for name in ("window", "reduce", "protocol")]
        assert sum(terms) == pytest.approx(float(row["total_us"]), rel=1e-4)
        assert float(row["low_us"]) < float(row["total_us"]) < float(row["high_us"])


def test_no_two_of_the_fastest_share_a_colour(page: str) -> None:
    legend = section(page, "latency").partition('<ul class="legend"')[2].partition("</ul>")[0]
    colours = re.findall(r'class="(k\d+)"', legend)

    assert len(colours) > 1
    assert len(set(colours)) == len(colours)


def test_every_mark_tells_the_interval_of_the_table(page: str) -> None:
    """Also where curves are drawn without bands: a point that is pointed at had its own time for both ends."""
    link = html.unescape(page.partition('href="data:text/csv;charset=utf-8,')[2].partition('"')[0])
    rows = {(row["algorithm"], row["bytes"]): row for row in csv.DictReader(io.StringIO(unquote(link)))}
    told = re.findall(
        r"<title>(\w+), (\d+) bytes: \S+ us predicted, nominal 90 % interval (\S+) to (\S+?)(?:,|<)",
        section(page, "latency"),
    )

    assert len(told) > len(rows) / 2
    for name, size, low, high in told:
        row = rows[name, size]
        assert [float(low), float(high)] == pytest.approx([float(row["low_us"]), float(row["high_us"])], rel=0.01)


def test_crossovers_are_those_of_the_command(page: str) -> None:
    told = re.findall(r'<tr><th scope="row">(\w+)</th><td[^>]*>(\w+)<td[^>]*>(\d+)<', section(page, "crossovers"))
    forecast = Forecast(topology("two-flat-gen5-switches"))
    every = forecast.crossovers(SIZES[0], SIZES[-1])

    assert told
    assert told[0][2] == str(every[0].bytes)
    assert [before for before, _, _ in told[1:]] == [after for _, after, _ in told[:-1]]


def test_terms_of_a_token_and_of_a_verify_step_are_drawn(page: str) -> None:
    why = section(page, "why")

    assert "<h3>14K, graph, predicted</h3>" in why
    assert "<h3>42K, graph, predicted</h3>" in why
    assert "waits most for a shared link" in why
    assert "measured</th>" not in why
    assert "Nothing was measured: each bar is the model's prediction." in why


def test_the_doctor_says_what_would_not_run_and_how_it_was_asked(page: str) -> None:
    doctor = section(page, "not-run")

    assert "Asked about 8 x sm_120 on this topology with torch" in doctor
    assert (
        "collbench doctor --for sm_120 --gpus 8 --fabric pcie --p2p ok --torch 2.14.1 --cuda 13.0 --with driver="
        in doctor
    )
    assert re.search(r'vllm_custom_all_reduce</th><td data-column="verdict">does not run', doctor)
    assert "nccl_auto" in doctor.partition("What is not predicted")[2]


def test_what_nobody_can_vouch_for_is_no_answer() -> None:
    forecast = Forecast(topology("two-flat-gen5-switches"))
    names = [algorithm.name for algorithm in forecast.algorithms]
    fastest = min(forecast.rows([14336]), key=lambda row: row["total_us"])["algorithm"]
    verdicts = dict.fromkeys(names, "runs") | {fastest: "unknown", "push": "does_not_run"}
    made = cast(forecast, [14336], Diagnosis("asked", verdicts=verdicts))
    drawn, answers = ({one.name for one in panel.series} for panel in (made.every, made.answer))

    assert made.unsure == (fastest,)
    assert fastest in drawn - answers
    assert "push" not in drawn
    assert {row["algorithm"] for row in made.rows} == set(names)


def test_where_nothing_is_vouched_for_the_headline_says_so() -> None:
    forecast = Forecast(topology("two-flat-gen5-switches"))
    unknown = dict.fromkeys([algorithm.name for algorithm in forecast.algorithms], "unknown")
    made = cast(forecast, [14336], Diagnosis("asked", verdicts=unknown))

    assert headline(made).startswith("if they run there, which nobody knows, ")
    assert not made.vouched


def test_where_nothing_runs_the_page_is_of_traffic_and_says_so() -> None:
    """Our own kernels alone, on cards that are too old for them."""
    machine = topology("one-plx-4xv100")
    own = [one for one in Forecast(machine).algorithms if one.family == "own"]
    page = forecast_page(Forecast(machine, algorithms=own), (1024, 65536), COMMAND)

    assert "<h1>By the model, though none of them runs there, " in page


def test_where_the_doctor_was_not_asked_the_page_says_so_first() -> None:
    header = html.unescape(build("cube-mesh-8xv100", (1024, 65536)).partition("</header>")[0])

    assert "it does not know machines of fabric mixed. Nobody knows whether what is called the fastest runs" in header


def test_headline_table_and_crossings_name_the_same(page: str) -> None:
    """At every size the table's fastest is the one of the headline's span, and crossings lead from one to the next."""
    title = html.unescape(page.partition("<h1>By the model, ")[2].partition(".<")[0])
    table = re.findall(
        r'<th scope="row" class="n">(\w+)</th><td data-column="fastest">(\w+)<', section(page, "fastest")
    )
    leaders = list(dict.fromkeys(name for _, name in table))
    ends = [[size for size, name in table if name == one][-1] for one in leaders]

    assert re.findall(r"(?:^|, )(\w+) ", title) == leaders
    assert re.findall(r"(?:up to|at|to) (\w+)", title) == ends
    crossed = re.findall(r'<tr><th scope="row">(\w+)</th><td[^>]*>(\w+)<', section(page, "crossovers"))
    assert [after for _, after in crossed if after in leaders] == leaders[1:]


def test_gain_and_worth_are_told_over_the_same_of_nccl(page: str) -> None:
    header = page.partition("</header>")[0]
    (first,) = re.findall(r"us and (nccl_\w+) ", header)
    (second,) = re.findall(r"ms and (nccl_\w+)|ms with \w+ and [\d.]+ ms with (nccl_\w+)", header)

    assert first in second


def test_the_page_says_how_little_the_order_says(page: str) -> None:
    header = html.unescape(page.partition("</header>")[0])

    said = header.partition("</h1>")[2].partition("</p>")[0]
    near, total = (int(text) for text in re.findall(r"At (\d+) of (\d+) sizes intervals of other", header)[0])
    where = f"all {total}" if near == total else f"{near} of {total}"
    assert said.endswith(f">Predicted; intervals overlap at {where} sizes: measure before you choose.")
    assert "sizes intervals of other algorithms overlap with that of the fastest (at 14K those of " in header
    assert "intervals overlap with" in section(page, "fastest")


def test_same_traffic_is_one_curve_under_the_shortest_name() -> None:
    made = cast(Forecast(topology("two-flat-gen5-switches")), [1024, 14336], Diagnosis("not asked"))

    groups = [{name, *others} for name, others in made.alike.items()]
    pair = {"sglang_classic_one_stage", "vllm_one_stage"}
    drawn = {one.name for one in made.every.series}

    assert any(pair <= group for group in groups)
    assert not pair <= drawn
    assert set(made.alike) <= drawn
    assert sorted(one.index for one in made.every.series) == list(range(len(made.every.series)))


def test_no_path_of_the_machine_that_made_it_is_told(page: str) -> None:
    assert "joe" not in page
    assert "collbench predict --topology two-flat-gen5-switches --html PATH" in page


@pytest.mark.parametrize(
    "name", ["nvswitch-8xh200", "two-arc-b70", "xgmi-mesh-8xmi355x", "direct-4x4090-no-p2p", "four-switches-16gpu"]
)
def test_other_machines_have_a_page_too(name: str) -> None:
    """With an NVSwitch, of other vendors, without peer access, with 16 GPUs."""
    page = build(name, (1024, 65536))

    assert "predicted, not measured" in page
    assert "<h1>By the model, " in page


def test_eager_calls_have_a_page_without_a_step() -> None:
    page = build("two-flat-gen5-switches", (1024, 65536), Mode.EAGER)

    assert "<h3>Eager, predicted, the fastest</h3>" in page
    assert 'id="worth"' not in page


def test_one_size_is_enough() -> None:
    page = build("two-flat-gen5-switches", (16384,))

    assert re.search(
        r"<h1>By the model, \w+ is fastest at 16K.</h1>\s+<p[^>]*>Predicted; intervals overlap: measure before you",
        page,
    )
    assert "One algorithm is the fastest at every size." in page
    assert nearest((16384,)) == 16384
