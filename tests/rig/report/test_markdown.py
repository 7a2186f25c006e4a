"""The Markdown report: a golden file, what fits where, and that nothing in it can break it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from rig.evidence_common import LEFT_OUT
from rig.records import (
    Canaries,
    CellResult,
    Comparison,
    Evidence,
    Finding,
    Ratio,
    Reason,
    Resumed,
    RunResult,
    Segment,
    Slow,
    TaskInfo,
    Verdict,
)
from rig.report.logs import LogTail, decisive
from rig.report.markdown import format_markdown, headline
from rig.report.markdown_figures import formulas
from rig.report.markdown_fit import GITHUB_LIMIT, LIMIT
from rig.report.markdown_grid import words
from rig.report.reproduce import reproduce
from rig.segments import segment_text

GOLDEN = Path(__file__).parent / "golden" / "report.md"
HOSTILE = (
    "a|b\\|c `x` ``` | <script>alert(1)</script> </details> <!-- @user #123 GH-7 org/repo#4 [l](http://x) ![i](y) "
    "www.z.de *b* _u_ ~~s~~ $m$ &amp; \x1b[31m \x00 \ud83d \u202e"
)
SOUND = Evidence(True, transfers=440, failed=0, expired=0, canaries=Canaries(40, 0, 0))


def against(baseline: str = "mono-tp1", b: int = 2, c: int = 1, **fields: Any) -> Comparison:
    delta = (c - b) / 400
    return Comparison(baseline, delta, (delta - 0.0131, delta + 0.012), 0.5, b, c, 400, 0.018, 0.99, **fields)


@pytest.fixture
def sweep(run: RunResult, make_result: Callable[..., CellResult]) -> RunResult:
    """Prefill TP 1 and 2, decode TP 1 and 2, async on and off: every state that a cell can end in, but the rarest."""

    def labels(prefill: int | None, decode: int, on: bool) -> dict[str, object]:
        return {"model": "tiny", "prefill_tp": prefill, "decode_tp": decode, "async_scheduling": on, "task": "math"}

    def cell(name: str, place: tuple[int | None, int, bool], state: Any, *reasons: Reason, **fields: Any) -> CellResult:
        given: dict[str, Any] = {"labels": labels(*place), "verdict": Verdict(state, reasons), "evidence": SOUND}
        task = TaskInfo("gsm8k", "3.0", "p", "gsm8k-strict", "s", 400)
        given |= {"comparisons": (against(),), "task": task, "warmup_requests": 16}
        return make_result(name, **(given | fields))

    lost = Segment("concurrency", "4 or more requests in flight", "lost", 38, 300, 2, 90, 1e-6, 1e-5)
    ratio = Ratio("ttft_p50", 1.5, (1.4, 1.6), 400, 400, gate=1.2, p_value=1e-4)
    worse = against(b=40, c=2, where=(lost,), ratios=(ratio, Ratio("requests_per_s", 0.8, (0.7, 0.9), 400, 400)))
    slow = Slow("ttft", 2.0, 300.0, 5, 400, 0, 400, 0.01)
    passed = Reason("accuracy", "Accuracy is shown not to be worse.", "pairs.mono-tp1.jsonl")
    red = cell(
        "pd-1-2-on",
        (1, 2, True),
        "regression",
        Reason("damage", "18 of 40 canaries lost the code that their prompt states.", "canaries.jsonl"),
        Reason("accuracy", "Accuracy is worse than on mono-tp1.", "pairs.mono-tp1.jsonl"),
        Reason("damage", segment_text(lost), "pairs.mono-tp1.jsonl"),
        Reason(
            "rig",
            "Asked again on fresh servers (pd-1-2-on.rerun), it came out the same, so it repeats.",
            "cells/pd-1-2-on.rerun/cell.json",
        ),
        correct=350,
        wrong=45,
        unparsed=3,
        error={"reset": 1},
        comparisons=(worse,),
        evidence=replace(SOUND, canaries=Canaries(40, 17, 1)),
    )
    again = cell("pd-1-2-on.rerun", (1, 2, True), "regression", correct=351, rerun_of=red.cell_id, comparisons=(worse,))
    again = replace(again, labels={**again.labels, "rerun": True})
    dead = CellResult(
        "pd-2-2-on",
        labels(2, 2, True),
        "pd",
        "tp2-on",
        "failed",
        failure="decode-0 ended with code -9 before it was ready: RuntimeError: CUDA error",
        verdict=Verdict(
            "failed",
            (
                Reason(
                    "errors",
                    "The deployment did not come up, or died: decode-0 ended with code -9 before it was ready: "
                    "RuntimeError: CUDA error",
                    "RuntimeError: CUDA error",
                ),
            ),
        ),
    )
    why = "Expected to fail: heterogeneous TP is not there yet (https://example.org/issues/9). It did (regression)."
    more = "Neither shown to be worse nor to be no worse: 900 more questions would decide."
    floor = replace(against("itself", 0, 0), delta=0.0)
    mono = make_result("mono-tp1", kind="monolithic", labels=labels(None, 1, False), noise_floor=floor)
    cells = (
        mono,
        cell("pd-1-1-off", (1, 1, False), "pass", passed, comparisons=(against(slow=(slow,)),)),
        cell("pd-1-1-on", (1, 1, True), "pass", passed, resumed=Resumed(120, 7, ("d", "d.2"), 31.5)),
        cell("pd-1-2-off", (1, 2, False), "inconclusive", Reason("accuracy", more, "pairs.mono-tp1.jsonl")),
        red,
        cell("pd-2-1-off", (2, 1, False), "xfail", Reason("accuracy", why)),
        cell(
            "pd-2-1-on",
            (2, 1, True),
            "invalid",
            Reason("transfer", "40 KV transfers for 400 answered requests, expected 1 each.", "counters"),
        ),
        cell(
            "pd-2-2-off", (2, 2, False), "no_baseline", Reason("accuracy", "Nothing to hold it against."), correct=389
        ),
        dead,
        again,
    )
    argv = ["pdrig", "sweep", "configs/tiny.yaml", "--limit", "400", "--out", "/tmp/x", "--cell=pd-*", "--strict"]
    info = replace(
        run.info,
        argv=argv,
        versions={"pdrig": "0.1.0"},
        host={"hostname": "h", "gpus": ["0, H100"], "environment": {"UCX_TLS": "rc"}},
        git={"commit": "c" * 40, "branch": "main", "changed": False},
        config_text="name: tiny\napi_key: hidden\n",
        notes=("mono-tp1: monolithic, TP 1",),
    )
    return replace(run, info=info, cells=cells)


LOGS = {
    "pd-2-2-on": (
        LogTail("prefill-0", "deployments/tp2-on/logs/prefill-0.log", ("INFO ready",)),
        LogTail("decode-0", "deployments/tp2-on/logs/decode-0.log", ("Traceback", "RuntimeError: CUDA error", "bye")),
    )
}


def test_the_report_is_the_golden_one(sweep: RunResult) -> None:
    """But for how each figure is counted, which is told elsewhere."""
    assert format_markdown(sweep, "runs/id", LOGS).replace(formulas(), "(formulas)") == GOLDEN.read_text()


def test_the_first_line_is_the_verdict_in_words(sweep: RunResult) -> None:
    assert format_markdown(sweep, "runs/id").splitlines()[0] == (
        "**Worse than the baseline:** `pd-1-2-on` (damage). "
        "**Could not be judged:** `pd-2-2-on` (errors), `pd-2-1-on` (transfer). "
        "**Not decided:** `pd-1-2-off` (accuracy), `pd-2-2-off` (accuracy). "
        "**2 cells are shown to be no worse than the baseline by the margin.** Failed as expected: `pd-2-1-off`."
    )


def test_a_server_that_a_router_left_out_is_told_of_a_cell_that_passed(sweep: RunResult) -> None:
    proof = replace(SOUND, findings=(Finding("transfer", "the router left out decode_1: nothing ended", LEFT_OUT),))
    cells = tuple(replace(c, evidence=proof) if c.cell_id == "pd-1-1-on" else c for c in sweep.cells)
    text = format_markdown(replace(sweep, cells=cells), "x")
    said = "### Notes\n\n- `pd-1-1-on`: the router left out decode\\_1: nothing ended\n\n"
    both = tuple(replace(c, missing_baseline="None is stored.") if c.cell_id == "pd-1-1-on" else c for c in cells)
    assert "nothing ended; held against no stored baseline: None is stored.\n" in (
        format_markdown(replace(sweep, cells=both), "x")
    )
    assert said in text and "### Notes" not in format_markdown(sweep, "x")


def test_headlines(run: RunResult) -> None:
    mono, cell = run.cells[:2]
    assert headline([mono, cell, cell]) == "**2 cells are shown to be no worse than the baseline by the margin.**"
    assert headline([mono]) == headline([]) == "**Nothing was judged.**"
    assert headline([replace(cell, verdict=Verdict("xpass"))]) == "**Passed though expected to fail:** `pd-off`."
    assert headline([replace(cell, verdict=Verdict("xfail"))]) == "Failed as expected: `pd-off`."
    assert headline([replace(cell, verdict=Verdict("no_baseline"))]) == "**Not decided:** `pd-off`."
    many = [replace(cell, cell_id=f"c{i}", verdict=Verdict("regression")) for i in range(9)]
    assert headline(many).endswith("`c5` and 3 more.")
    assert headline([replace(cell, rerun_of="x", verdict=Verdict("regression"))]) == "**Nothing was judged.**"


def test_rows_of_the_grid_are_prefill_and_its_columns_decode_and_async(sweep: RunResult) -> None:
    heads, rows = tables(format_markdown(sweep, "x"))[0]
    assert heads == ["prefill TP", *(f"decode TP {d}, async {a}" for d in (1, 2) for a in ("off", "on"))]
    assert [row[0] for row in rows] == ["1", "2"]
    assert rows[0][4].startswith("❌ regression (damage) 0.877")
    assert "again: ❌ regression" in rows[0][4]


def test_other_labels_that_vary_take_their_places(sweep: RunResult) -> None:
    cells = [c for c in sweep.cells if c.cell_id in ("pd-1-1-off", "pd-1-1-on", "pd-1-2-off", "pd-1-2-on")]
    places = [("nixl", 1), ("nixl", 2), ("mooncake", 1), ("mooncake", 2)]
    cells = [replace(c, labels={"connector": a, "concurrency": b}) for c, (a, b) in zip(cells, places, strict=True)]
    heads, rows = tables(format_markdown(replace(sweep, cells=tuple(cells)), "x"))[0]
    assert heads == ["connector", "concurrency 1", "concurrency 2"]
    assert [row[0] for row in rows] == ["nixl", "mooncake"]


def test_where_a_grid_does_not_fit_there_is_a_row_a_cell(sweep: RunResult) -> None:
    """Labels that go together leave a grid mostly empty, and one that is alone needs none."""
    cells = [c for c in sweep.cells if c.kind == "pd" and c.rerun_of is None][:4]
    together = [replace(c, labels={"decode_tp": i, "pool": i}) for i, c in enumerate(cells)]
    heads, rows = tables(format_markdown(replace(sweep, cells=tuple(together)), "x"))[0]
    assert (heads, len(rows)) == (["decode TP", "pool", "verdict, accuracy, change"], 4)
    same = [replace(c, labels={"decode_tp": 1}) for c in cells]
    heads, rows = tables(format_markdown(replace(sweep, cells=tuple(same)), "x"))[0]
    assert heads[0] == "cell"
    assert rows[0][0] == cells[0].cell_id


def test_a_label_that_is_the_path_of_a_setting_stays_as_it_is(sweep: RunResult) -> None:
    names = {"decode.env.UCX_TLS": "UCX_TLS", "prefill_kv_blocks": "prefill KV blocks", "async_scheduling": "async"}
    assert [words(name).rsplit(".", 1)[-1] for name in names] == list(names.values())


def test_models_have_a_grid_each(sweep: RunResult) -> None:
    other = [replace(c, cell_id=f"o-{c.cell_id}", labels={**c.labels, "model": "big"}) for c in sweep.cells]
    text = format_markdown(replace(sweep, cells=(*sweep.cells, *other)), "x")
    assert [line for line in text.splitlines() if line.startswith("### ")][:2] == ["### tiny", "### big"]


def test_only_what_is_red_or_undecided_is_told_in_full(sweep: RunResult) -> None:
    text = format_markdown(sweep, "x", LOGS)
    told = re.findall(r"^#### \S+ (.*): `(.*)`$", text, re.MULTILINE)
    assert told == [
        ("regression", "pd-1-2-on"),
        ("failed", "pd-2-2-on"),
        ("invalid", "pd-2-1-on"),
        ("inconclusive", "pd-1-2-off"),
        ("no baseline", "pd-2-2-off"),
    ]
    assert "cells/pd-1-2-on/canaries.jsonl" in text
    assert "- **where**: Losses sit where there were 4 or more requests in flight" in text


def test_the_command_keeps_the_options_of_the_sweep(sweep: RunResult) -> None:
    red, again = (c for c in sweep.cells if c.cell_id.startswith("pd-1-2-on"))
    command = "pdrig sweep configs/tiny.yaml --cell pd-1-2-on --limit 400 --strict"
    assert reproduce(sweep, red) == reproduce(sweep, again) == command
    argv = ["pdrig", "sweep", "--resume", "r", "--api-key", "s3cr3t", "configs/tiny.yaml", "--data", "a b"]
    secret = replace(sweep, info=replace(sweep.info, argv=argv))
    assert reproduce(secret, red) == "pdrig sweep configs/tiny.yaml --cell pd-1-2-on --api-key '***' --data 'a b'"
    evaluated = replace(sweep, info=replace(sweep.info, argv=["pdrig", "eval", "URL"]))
    assert reproduce(evaluated, red) == "pdrig sweep configs/tiny.yaml --cell pd-1-2-on"


def test_secrets_stay_out(sweep: RunResult) -> None:
    argv = [*sweep.info.argv, "--api-key", "s3cr3t"]
    cells = [replace(c, failure="--api-key s3cr3t") if c.failure else c for c in sweep.cells]
    reasons = (Reason("errors", "It died: api_key='s3cr3t'", "HF_TOKEN=s3cr3t"),)
    cells = [replace(c, verdict=Verdict("failed", reasons)) if c.failure else c for c in cells]
    text = format_markdown(replace(sweep, cells=tuple(cells), info=replace(sweep.info, argv=argv)), "x")
    assert "s3cr3t" not in text
    assert "hidden" not in text


def test_the_log_that_has_the_decisive_line_is_shown(sweep: RunResult) -> None:
    dead = next(c for c in sweep.cells if c.failure)
    prefill, decode = LOGS["pd-2-2-on"]
    assert decisive(dead, [prefill, decode]) == [decode]
    quiet = replace(decode, lines=("nothing",))
    assert decisive(dead, [prefill, quiet]) == [quiet]
    unnamed = replace(dead, failure="gone", verdict=None)
    assert decisive(unnamed, [prefill, decode, replace(quiet, lines=())]) == [prefill, decode]


def test_the_same_results_give_the_same_bytes(sweep: RunResult) -> None:
    assert format_markdown(sweep, "x", LOGS) == format_markdown(replace(sweep), "x", dict(LOGS))


def test_missing_values_are_never_zero(sweep: RunResult) -> None:
    _, rows = tables(format_markdown(sweep, "x"))[0]
    assert rows[1][4] == "🛑 failed (errors)"


def test_figures_of_an_invalid_cell_are_not_shown_as_if_they_counted(sweep: RunResult) -> None:
    text = format_markdown(sweep, "x")
    assert tables(text)[0][1][1][2] == "⚠️ invalid (transfer)"
    assert "prefill TP 2, decode TP 1, async on; its figures do not count." in text


def test_runs_without_cells_and_without_an_end(run: RunResult) -> None:
    bare = replace(run, cells=(), reference=(), info=replace(run.info, ended=None))
    text = format_markdown(bare, "runs/id")
    assert text.splitlines()[0] == "**Nothing was judged.**"
    assert "**not finished**. 0 cells: nothing ran." in text


# What fits


def of(text: str) -> int:
    return len(text.encode("utf-16-le")) // 2


@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.integers(1, 220),
    st.integers(0, 40),
    st.sampled_from(["Accuracy is worse. ", "`|<b>@user#1 ", "ü😀 ", "\n\n# "]),
    st.lists(st.sampled_from(["regression", "failed", "invalid", "inconclusive", "no_baseline", "xpass"]), min_size=1),
)
def test_red_cells_are_named_however_many_there_are(
    sweep: RunResult, many: int, long: int, words: str, states: list[Any]
) -> None:
    cell = next(c for c in sweep.cells if c.cell_id == "pd-1-2-on")
    reasons = tuple(Reason("accuracy", words * 10 * long + str(i), "pairs.jsonl") for i in range(6))
    cells = [
        replace(
            cell,
            cell_id=f"tiny-{i:03d}-{'x' * 60}",
            labels={"decode_tp": i, "model": "tiny"},
            verdict=Verdict(states[i % len(states)], reasons),
        )
        for i in range(many)
    ]
    logs = {c.cell_id: (LogTail("decode-0", "decode-0.log", ("line " * 90,) * 40),) for c in cells}
    text = format_markdown(replace(sweep, cells=(*sweep.cells[:2], *cells)), "runs/id", logs)
    assert of(text) <= LIMIT < GITHUB_LIMIT
    listed = text[text.index("### What to look at") :]
    assert all(f"`{c.cell_id}`" in listed for c in cells)
    assert (of(text) > LIMIT - 10_000) or "Cut to fit" not in text


def test_two_hundred_red_cells_with_long_reasons_and_logs(sweep: RunResult) -> None:
    cell = next(c for c in sweep.cells if c.cell_id == "pd-1-2-on")
    reasons = tuple(Reason("accuracy", "So many losses are not chance. " * 40, "pairs.jsonl") for _ in range(8))
    cells = [replace(cell, cell_id=f"red-{i}", verdict=Verdict("regression", reasons)) for i in range(200)]
    text = format_markdown(replace(sweep, cells=tuple(cells)), "runs/id")
    assert of(text) <= LIMIT
    assert all(f"`red-{i}`" in text[text.index("### What") :] for i in range(200))
    assert "Cut to fit a comment of GitHub's" in text
    assert "--cell CELL --limit 400 --strict" in text
    assert LIMIT - of(text) < 3_000  # what room there is, is used


def test_more_cells_than_names_fit_are_counted(sweep: RunResult) -> None:
    cell = next(c for c in sweep.cells if c.cell_id == "pd-1-2-on")
    cells = [replace(cell, cell_id=f"red-{i:05d}-{'y' * 80}", labels={}) for i in range(3000)]
    text = format_markdown(replace(sweep, cells=tuple(cells)), "runs/id")
    assert of(text) <= LIMIT
    assert "And 2000 more: 2000 regression." in text


def test_folded_parts_go_first(sweep: RunResult) -> None:
    whole = format_markdown(sweep, "x", LOGS)
    tight = format_markdown(sweep, "x", LOGS, limit=of(whole) - 1)
    assert "Cut to fit" in tight
    assert "How it is counted" in whole and "How it is counted" not in tight
    assert "CUDA error" in tight


# Nothing breaks it


def parsed(text: str) -> list[Any]:
    return list(MarkdownIt("commonmark").enable("table").parse(text))


def tables(text: str) -> list[tuple[list[str], list[list[str]]]]:
    """Headings and rows of each table, as texts."""
    found: list[tuple[list[str], list[list[str]]]] = []
    row: list[str] = []
    for token in parsed(text):
        if token.type == "table_open":
            found.append(([], []))
        elif token.type == "tr_open":
            row = []
        elif token.type == "inline" and found:
            words = [c.content if c.type in ("text", "code_inline") else " " for c in token.children]
            row.append(re.sub(r"\s+", " ", "".join(words)).strip())
        elif token.type == "tr_close":
            if found[-1][0]:
                found[-1][1].append(row)
            else:
                found[-1][0].extend(row)
    return found


OWN_TAGS = re.compile(r"<(details|/details|summary|/summary|br|span|/span)>")
MENTION = re.compile(r"@\w|(?<![\w`])#\d|\bGH-\d")


def assert_sound(text: str) -> None:
    """No link, picture, raw HTML but the report's own, mention or heading of a stranger; every detail is closed."""
    tokens = parsed(text)
    details = "".join(token.content for token in tokens if token.type == "html_block")
    assert details.count("<details>") == details.count("</details>")
    for token in tokens:
        if token.type == "html_block":
            assert not OWN_TAGS.sub("", token.content).count("<"), token.content
        for child in token.children or ():
            assert child.type not in ("link_open", "image"), token.content
            if child.type == "html_inline":
                assert OWN_TAGS.fullmatch(child.content), child.content
            if child.type == "text":
                assert not MENTION.search(child.content), child.content


@pytest.mark.parametrize("where", ["label", "label name", "model", "reason", "id", "baseline", "run", "log", "note"])
def test_hostile_texts_change_nothing_but_their_own_place(sweep: RunResult, where: str) -> None:
    plain = format_markdown(marked(sweep, where, "harmless"), "runs/id", logs_of("harmless" if where == "log" else "x"))
    text = format_markdown(marked(sweep, where, HOSTILE), "runs/id", logs_of(HOSTILE if where == "log" else "x"))
    assert_sound(text)
    text.encode()
    assert shape(text) == shape(plain)


def logs_of(line: str) -> dict[str, tuple[LogTail, ...]]:
    return {"pd-2-2-on": (LogTail("decode-0", "decode-0.log", (line, "````", "</details>", "@user #1")),)}


def shape(text: str) -> list[tuple[str, int]]:
    """The blocks of a text, without what is in them."""
    return [(t.type, t.level) for t in parsed(text) if t.type != "inline"]


def marked(sweep: RunResult, where: str, text: str) -> RunResult:
    """The sweep with a text of a stranger in one place."""

    def cell(c: CellResult) -> CellResult:
        if where in ("label", "label name", "model"):
            name, value = {"label": ("task", text), "model": ("model", text)}.get(where, (text, "v"))
            return replace(c, labels={**c.labels, name: value})
        if where == "reason" and c.verdict:
            return replace(c, verdict=Verdict(c.verdict.state, (Reason("rig", text, text),)))
        if where == "id" and c.cell_id == "pd-1-1-on":
            return replace(c, cell_id=text, verdict=Verdict("invalid"))
        if where == "baseline":
            return replace(c, comparisons=tuple(replace(x, baseline=text) for x in c.comparisons))
        return c

    info = sweep.info
    if where == "run":
        info = replace(info, name=text, config_file=text, versions={text: text}, host={text: [text]}, config_text=text)
    if where == "note":
        info = replace(info, notes=(text,))
    return replace(sweep, cells=tuple(cell(c) for c in sweep.cells), info=info)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text(max_size=60), st.dictionaries(st.text(max_size=20), st.text(max_size=30) | st.integers(), max_size=3))
def test_any_texts_can_be_shown(sweep: RunResult, said: str, labels: dict[str, object]) -> None:
    cells = [
        replace(c, labels=labels, verdict=Verdict("regression", (Reason("accuracy", said, said),)))
        for c in sweep.cells[:3]
    ]
    text = format_markdown(replace(sweep, cells=tuple(cells)), said)
    assert_sound(text)
    text.encode()
