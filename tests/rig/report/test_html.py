from __future__ import annotations

import base64
import hashlib
import json
import random
import re
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from importlib import resources
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evals.records import RequestRecord
from rig import records
from rig.records import (
    CellResult,
    Comparison,
    Divergence,
    Group,
    Groups,
    Pair,
    Ratio,
    Reason,
    Resumed,
    RunResult,
    Segment,
    Slow,
    Verdict,
)
from rig.report.data import CellData, RunData
from rig.report.html import format_html
from rig.report.html_charts import by_order, first_divergence, over_concurrency, series_class
from rig.report.html_data import LEFT_OUT, Texts, embedded, requests_data
from rig.report.html_grid import MARKS, TONES, grids
from rig.report.html_svg import Axis, escape, with_links
from rig.report.html_timeline import timeline
from rig.report.junit import format_junit
from rig.report.logs import LogTail

VOID = {"meta", "link", "input", "br"}


class Page(HTMLParser):
    """The elements of a page; fails where one is not closed in its place."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] == "script":
            self.scripts.append(data)
        elif self._open and self._open[-1] != "style":
            self.text += data

    def ids(self) -> list[str]:
        return [value for _, attributes in self.elements if (value := attributes.get("id"))]


def embedded_data(page: Page) -> Any:
    return json.loads(page.scripts[0])


def resolve(texts: list[Any], number: int) -> str:
    """A text as the page's script puts it together: lengths are in UTF-16."""
    kept = texts[number]
    if isinstance(kept, str):
        return kept
    first = texts[kept[0]].encode("utf-16-le", "surrogatepass")[: 2 * kept[1]]
    return str(first.decode("utf-16-le", "surrogatepass") + kept[2])


def test_parts_of_the_page(detailed: RunData) -> None:
    page = Page(format_html(detailed))
    ids = page.ids()
    assert len(set(ids)) == len(ids)
    assert {"overview", "accuracy", "speed", "cells", "requests", "provenance"} <= set(ids)
    assert [i for i in ids if re.fullmatch(r"cell-\d+", i)] == ["cell-1", "cell-2", "cell-3", "cell-4"]
    links = {value for _, attributes in page.elements if (value := attributes.get("href")) and value.startswith("#")}
    assert {link[1:] for link in links} <= set(ids)
    opened = [a["id"] for tag, a in page.elements if tag == "details" and "open" in a]
    assert opened == ["cell-3", "cell-4"]
    for title in ("TTFT: share", "E2E: share", "Accuracy by order", "First divergence", "Timeline"):
        assert title in page.text
    assert "accuracy: No worse by 2.00 points. [judged.jsonl]" in page.text
    assert "pdrig sweep configs/tiny.yaml --cell pd-on" in page.text
    assert "-9.50 [-12.89, -6.75] points" in page.text


def test_it_loads_nothing_and_admits_its_own_script_alone(detailed: RunData) -> None:
    text = format_html(detailed)
    page = Page(text)
    assert not [tag for tag, a in page.elements if "src" in a or tag in ("img", "iframe", "object", "embed")]
    assert {a["href"] for tag, a in page.elements if tag == "link"} == {"data:,"}
    assert not [name for _, a in page.elements for name in a if name.startswith("on") or name == "style"]
    policy = next(a["content"] or "" for tag, a in page.elements if tag == "meta" and "http-equiv" in a)
    assert policy.startswith("default-src 'none';")
    digest = base64.b64encode(hashlib.sha256(page.scripts[1].encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in policy and "unsafe" not in policy
    script = resources.files("rig.report").joinpath("assets", "report.js").read_text()
    assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(|Function\(", script)


def test_the_same_results_give_the_same_bytes(detailed: RunData) -> None:
    again = RunData(detailed.results, dict(reversed(detailed.cells.items())))
    assert format_html(detailed) == format_html(again)


def test_hostile_labels_reasons_and_texts_stay_text(detailed: RunData, make_result: Callable[..., CellResult]) -> None:
    bad = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'><!--"
    verdict = Verdict("regression", (Reason("accuracy", bad, bad),))
    comparison = Comparison(bad, -0.1, (-0.2, 0.0), 0.01, 3, 1, 20, 0.1, 0.5)
    fields: dict[str, Any] = {"labels": {"model": bad, bad: bad}, "commands": {bad: [bad]}, "failure": bad}
    cell = make_result(bad, verdict=verdict, comparisons=(comparison,), **fields)
    info = replace(detailed.results.info, name=bad, config_file=bad, config_text=bad, notes=(bad,), versions={bad: bad})
    run = RunResult(info, (cell,), ({bad: bad},))
    page = Page(format_html(RunData(run, {bad: detailed.cells["pd-on"]})))
    assert [tag for tag, _ in page.elements].count("script") == 2 == len(page.scripts)
    assert "img" not in {tag for tag, _ in page.elements}
    assert page.text.count(bad) > 8


@given(text=st.text())
def test_any_text_survives_being_embedded(text: str) -> None:
    data = embedded({"a": text})
    assert b"<" not in data and json.loads(data) == {"a": text}
    assert not re.search("[<>\"'\x00]", escape(text))


@given(texts=st.lists(st.text(alphabet="ab\U0001f600\ud83d\n", max_size=60)))
def test_texts_are_kept_once_and_read_back(texts: list[str]) -> None:
    kept = Texts()
    start = "a text that all of them share \U0001f600 "
    numbers = [kept.add("q", start + text) for text in texts]
    stored = json.loads(embedded(kept.kept))
    assert [resolve(stored, number) for number in numbers] == [start + text for text in texts]
    assert len(stored) == len({start + text for text in texts})


def test_where_there_is_no_room_right_and_equal_texts_go_first(detailed: RunData) -> None:
    whole, small = requests_data(detailed), requests_data(detailed, budget=1000)
    assert whole["left_out"] == 0
    on = small["cells"][2]
    assert small["left_out"] > 0 and LEFT_OUT in on["text"]
    mono = small["cells"][0]
    for row in (10, 20):
        assert "it is 99" in resolve(small["texts"], on["text"][row])
        assert "it is 18" in resolve(small["texts"], mono["text"][row])


def test_rows_of_a_cell_and_of_its_baseline(detailed: RunData) -> None:
    data = embedded_data(Page(format_html(detailed)))
    cells = {cell["id"]: cell for cell in data["cells"]}
    on, off = cells["pd-on"], cells["pd-off"]
    assert (len(on["sample"]), on["outcome"][10], on["outcome"][30], on["outcome"][40:]) == (43, "w", "e", "rwx")
    against = on["against"][0]
    assert (against["name"], against["cell"], against["row"][10], against["row"][41]) == ("mono", 0, 10, -1)
    assert against["token"] == {"10": 9, "20": 9} and against["shift"] == {"10": 2.5, "20": 2.5}
    assert on["error"] == {"30": "decode: stream_cut: gone <b>away</b>"}
    assert on["e2e"][30] is None and on["expected"] == {"40": "K0", "41": "K1", "42": "K2"}
    assert off["against"][0]["row"] == list(range(40))
    assert cells["pd-dead"]["sample"] == []


def test_a_stored_baseline_has_outcomes_and_no_texts(detailed: RunData) -> None:
    on = detailed.cells["pd-on"]
    moved = {"results/baselines/x.json": [replace(p, baseline_request_id="gone") for p in on.pairs["mono"]]}
    run = detailed.results
    comparison = replace(run.cells[2].comparisons[0], baseline="results/baselines/x.json")
    run = replace(run, cells=(replace(run.cells[2], comparisons=(comparison,)),))
    data = requests_data(RunData(run, {"pd-on": replace(on, pairs=moved)}))
    against = data["cells"][0]["against"][0]
    assert (against["cell"], set(against["row"]), against["outcome"][:3]) == (-1, {-1}, "ccc")


def test_eight_cells_of_gsm8k_stay_below_ten_megabytes(big_run: Callable[[int, int], RunData]) -> None:
    text = format_html(big_run(8, 1319)).encode()
    data = json.loads(Page(text.decode()).scripts[0])
    assert len(text) < 10_000_000
    assert data["left_out"] == 0
    assert [len(cell["sample"]) for cell in data["cells"]] == [1319] * 8


def test_long_answers_stay_below_ten_megabytes_too(big_run: Callable[[int, int], RunData]) -> None:
    data = big_run(4, 600)
    draw = random.Random(0)
    cells = {
        name: replace(cell, records=[replace(r, text=f"{draw.getrandbits(40_000):x}") for r in cell.records])
        for name, cell in data.cells.items()
    }
    text = format_html(RunData(data.results, cells))
    assert 6_000_000 < len(text.encode()) < 10_000_000
    assert json.loads(Page(text).scripts[0])["left_out"] > 0


def test_the_grid_places_every_cell(make_result: Callable[..., CellResult]) -> None:
    cells = [
        make_result(
            f"c{i}",
            kind="monolithic" if prefill is None else "pd",
            labels={"model": m, "prefill_tp": prefill, "decode_tp": d, "async_scheduling": a, "block_size": b},
        )
        for i, (m, prefill, d, a, b) in enumerate(
            (m, p, d, a, b)
            for m in ("small", "large")
            for p in (2, 10, None)
            for d in (1, 4)
            for a in (False, True)
            for b in (16, 32)
        )
    ]
    text = grids(cells)
    assert re.findall(r"<h3>(.*?)</h3>", text) == ["Model small", "Model large"]
    first = text.split("Model large")[0]
    assert re.findall(r'scope="row">(.*?)<', first) == ["whole, no P/D", "prefill TP 2", "prefill TP 10"]
    assert re.findall(r'scope="colgroup" colspan="2">(.*?)<', first) == ["decode TP 1", "decode TP 4"]
    assert sorted(re.findall(r'title="(c\d+)"', text)) == sorted(cell.cell_id for cell in cells)
    assert "block size 32" in text


def test_every_state_has_a_sign_and_a_tone(every_state: RunResult) -> None:
    page = format_html(RunData(every_state))
    assert MARKS.keys() == TONES.keys()
    for sign in set(MARKS.values()):
        assert f'aria-hidden="true">{sign}</span>' in page


def test_segments_ratios_slow_requests_and_tests_are_told(detailed: RunData) -> None:
    run = detailed.results
    comparison = replace(
        run.cells[2].comparisons[0],
        where=(Segment("concurrency", "4+", "lost", 9, 10, 1, 30, 0.001, 0.002),),
        ratios=(Ratio("ttft_p50", 1.25, (1.1, 1.4), 400, 400, gate=1.2),),
        slow=(Slow("ttft", 2.0, 512.0, 7, 400, 1, 400, 0.03),),
        first_divergence=Divergence(40, 38, 0, measured=40, damaged=2, threshold=1.5),
    )
    cell = replace(
        run.cells[2], comparisons=(comparison,), tests=(records.Tested("accuracy/mono", "accuracy", 0.01, 0.04),)
    )
    text = " ".join(Page(format_html(RunData(replace(run, cells=(cell,)), detailed.cells))).text.split())
    for said in ("concurrency 4+", "9/10", "ttft_p50", "1.100 to 1.400", "2 times the baseline's p99 ttft", "7/400"):
        assert said in text, said
    assert "accuracy/mono" in text and "2 of 40 answers with logprobs shifted beyond 1.5 nats" in text


def test_a_repetition_of_a_red_cell_stands_among_the_cells_alone(detailed: RunData) -> None:
    run, on = detailed.results, detailed.results.cells[2]
    again = replace(on, cell_id="pd-on.rerun", rerun_of="pd-on", labels={**on.labels, "rerun": True, "concurrency": 8})
    page = Page(format_html(RunData(replace(run, cells=(*run.cells, again)), detailed.cells)))
    links = [a.get("href") for tag, a in page.elements if tag == "a"]
    assert "#cell-3" in links and "#cell-5" not in links
    assert [a for tag, a in page.elements if tag == "details" and a.get("id") == "cell-5" and "open" not in a]
    assert "Asked again, on fresh servers, for pd-on." in page.text
    assert "No cell was measured at a fixed number" in page.text


def test_secrets_are_masked_in_every_place(every_state: RunResult) -> None:
    said = "it ended: --api-key hush-hush; HF_TOKEN=hush-hush"
    verdict = Verdict("failed", (Reason("errors", said, said),))
    cell = replace(
        every_state.cells[7], verdict=verdict, failure=said, commands={"prefill-0": ["x", "--api-key", "hush-hush"]}
    )
    info = replace(
        every_state.info, config_text="env:\n  HF_TOKEN: hush-hush\n", argv=["pdrig", "--api-key", "hush-hush"]
    )
    run = RunResult(info, (cell,))
    for text in (format_html(RunData(run)), format_junit(run)):
        assert "it ended" in text and "hush-hush" not in text


def test_nothing_ran(run: RunResult) -> None:
    page = Page(format_html(RunData(replace(run, cells=(), reference=()))))
    assert "Nothing ran." in page.text and embedded_data(page)["cells"] == []


def test_lines_over_concurrency_and_bars_at_one(make_result: Callable[..., CellResult]) -> None:
    def cell(kind: str, concurrency: int | None) -> CellResult:
        return make_result(kind=kind, labels={"concurrency": concurrency, "decode_tp": 1})

    lines = over_concurrency([cell("pd", 4), cell("pd", 16), cell("monolithic", 4), cell("monolithic", 16)])
    assert lines.count('class="line s0"') == lines.count('class="line s1"') == 6 and 'class="bar' not in lines
    bars = over_concurrency([cell("pd", 4), cell("monolithic", 4)])
    assert bars.count('class="bar s0"') == 6 and 'class="line' not in bars
    assert "No cell was measured" in over_concurrency([cell("pd", None)])


def test_more_series_than_colours_are_told_apart() -> None:
    names = [series_class(i) for i in range(24)]
    style = resources.files("rig.report").joinpath("assets", "report.css").read_text()
    assert len(set(names)) == 24
    assert all(f".line.{name.split()[1]}" in style for name in names[8:])


def test_first_divergence_says_what_it_counts(detailed: RunData) -> None:
    result = detailed.results.cells[2]
    pairs = detailed.pairs(result)["mono"]
    tokens = first_divergence(result.comparisons[0], pairs, {})
    assert "first token that differs" in tokens and "4-15: 2" in tokens and "2 answers differ, 37 are equal." in tokens
    blind = [replace(pair, first_token=None) for pair in pairs]
    texts = {r.request_id: r.text for name in ("mono", "pd-on") for r in detailed.cells[name].records if r.text}
    characters = first_divergence(result.comparisons[0], blind, texts)
    assert "first character that differs" in characters and "16-63: 2" in characters
    assert first_divergence(result.comparisons[0], blind, {}) == ""


def test_accuracy_by_order_counts_the_same_questions(detailed: RunData) -> None:
    cell, pairs = detailed.cells["pd-on"], detailed.pairs(detailed.results.cells[2])["mono"]
    text = by_order(cell.records, cell.judged, pairs)
    assert "requests 0 to 19: 19 of 20 right" in text and "requests 20 to 39: 18 of 19 right" in text
    assert by_order(cell.records, (), ()) == ""
    alone: list[Pair] = []
    assert "baseline" not in by_order(cell.records, cell.judged, alone)


def test_the_timeline_draws_each_request_once(detailed: RunData, make_record: Callable[..., RequestRecord]) -> None:
    cell = detailed.cells["pd-on"]
    outcomes = {**{j.request_id: j.outcome for j in cell.judged}, **{c.request_id: c.outcome for c in cell.canaries}}
    text = timeline(cell.records, outcomes)
    for said in ("warm-up (1)", "canary (1)", "right (37)", "not right (4)", "error (1)"):
        assert said in text
    assert sum(len(re.findall("M", path)) for path in re.findall(r'class="span [a-z]+" d="(.*?)"', text)) == 44
    assert timeline([], {}) == ""
    assert "not judged (1)" in timeline([make_record("q", t_submit=1.0, t_end=1.0)], {})


@pytest.mark.parametrize(
    ("axis", "ticks"),
    [
        (Axis("", 0, 1), [0, 0.25, 0.5, 0.75, 1]),
        (Axis("", 0, 39236), [0, 10000, 20000, 30000]),
        (Axis("", 1, 1000, log=True), [1, 10, 100, 1000]),
        (Axis("", 4.2, 9.9, log=True), [6, 8]),
        (Axis("", 8, 320, log=True), [10, 30, 100, 300]),
    ],
)
def test_ticks_are_round(axis: Axis, ticks: list[float]) -> None:
    assert axis.ticks() == pytest.approx(ticks)


def test_cells_that_are_not_there_have_no_requests(run: RunResult) -> None:
    assert RunData(run).cell("pd-on") == CellData()
    assert RunData(run).pairs(run.cells[2]) == {}


# What is told of a cell beside its figures


def section(data: RunData, cell_id: str) -> str:
    cells = re.split(r'(?=<details class="cell")', format_html(data).partition('<section id="requests">')[0])
    [found] = [part for part in cells if f"<summary><h3>{cell_id} " in part]
    return found.partition("</section>")[0]


def changed(data: RunData, cell_id: str, **fields: Any) -> RunData:
    cells = tuple(replace(c, **fields) if c.cell_id == cell_id else c for c in data.results.cells)
    return replace(data, results=replace(data.results, cells=cells))


def test_what_was_resumed_groups_and_unscored_answers_are_told(detailed: RunData) -> None:
    counts = replace(detailed.results.cells[2].counts, unscored=7)  # type: ignore[type-var]
    groups = Groups("depth", (Group("0 %", 38, 40), Group("50 %", 0, 0)))
    data = changed(detailed, "pd-on", resumed=Resumed(12, 3, ("d",), 1.0), groups=groups, counts=counts)
    text = Page(f"<p>{section(data, 'pd-on')}</p>").text
    assert "resumed12 records are from before, 3 questions were asked again" in text
    assert "accuracy by groupby depth: 0 % 38/40" in text
    assert "7 answered that have no right answer, so in no accuracy" in text
    assert "resumed" not in section(data, "pd-off") and "no right answer" not in section(data, "pd-off")


def test_a_stored_baseline_that_is_missing_is_told(detailed: RunData) -> None:
    data = changed(detailed, "pd-off", missing_baseline="None is stored in <x>.")
    assert "stored baselinenone was held against it: None is stored in <x>." in (
        Page(f"<p>{section(data, 'pd-off')}</p>").text
    )
    assert "stored baseline" not in section(detailed, "pd-off")


def test_a_failed_cell_has_the_end_of_the_log_that_says_why(detailed: RunData) -> None:
    logs = (LogTail("prefill-0", "p.log", ("all <b>well</b>",)), LogTail("decode-0", "d.log", ("CUDA error & <i>",)))
    data = replace(detailed, cells={**detailed.cells, "pd-dead": CellData(logs=logs)})
    text = section(data, "pd-dead")
    assert "Log of decode-0: one line of d.log" in text and "CUDA error &amp; &lt;i&gt;" in text
    assert "p.log" not in text


def test_the_figures_of_an_invalid_cell_are_in_no_chart(detailed: RunData) -> None:
    sound = changed(detailed, "pd-on", labels={"concurrency": 8})
    data = changed(sound, "pd-on", verdict=Verdict("invalid", (Reason("transfer", "Nothing moved."),)))
    for part, name in (("accuracy", "pd-on"), ("speed", "8 requests in flight")):
        shown = [
            format_html(d).partition(f'<section id="{part}">')[2].partition("</section>")[0] for d in (sound, data)
        ]
        assert [name in text for text in shown] == [True, False], part
    assert "does not count" in section(data, "pd-on")


@pytest.mark.parametrize(
    ("text", "links"),
    [
        ("see https://example.org/issues/1.", ["https://example.org/issues/1"]),
        ("late (https://example.org/a?b=1&c=2). It did.", ["https://example.org/a?b=1&amp;c=2"]),
        ('javascript:alert(1) <a href="https://x.org/">', ["https://x.org/"]),
        ("nothing to follow", []),
    ],
)
def test_addresses_can_be_followed(text: str, links: list[str]) -> None:
    shown = with_links(text)
    assert re.findall(r'<a href="([^"]*)" rel="noreferrer">', shown) == links
    assert Page(f"<p>{shown}</p>").text == text


def test_only_the_reason_that_the_sweeps_author_wrote_has_links(detailed: RunData) -> None:
    reasons = (Reason("accuracy", "Expected: https://x.org/1"), Reason("accuracy", "a log says https://x.org/2"))
    for state, links in (("xfail", ["https://x.org/1"]), ("xpass", ["https://x.org/1"]), ("regression", [])):
        text = section(changed(detailed, "pd-on", verdict=Verdict(state, reasons)), "pd-on")  # type: ignore[arg-type]
        assert re.findall(r'<a href="(https[^"]*)"', text) == links, state
