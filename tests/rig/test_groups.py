"""Accuracy by groups of questions, and where prompt tokens came from: counted, and shown only where known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from evals.tasks import build_task
from rig import series as c
from rig.evidence import prompt_sources
from rig.metrics import groups
from rig.records import CellResult, Group, Groups, Judged, Outcome, PromptSources
from rig.report import rows

MakeResult = Callable[..., CellResult]
TASK = build_task("needles", limit=4, options={"words": 10, "depths": [0, 100]})


def judged(*outcomes: Outcome) -> list[Judged]:
    return [Judged(f"r{i}", f"needle-{i:04d}", "robust", None, "1", outcome) for i, outcome in enumerate(outcomes)]


def test_groups_are_in_the_tasks_order_and_errors_are_outside() -> None:
    found = groups(judged("correct", "wrong", "error", "correct"), TASK)
    assert found == Groups("depth", (Group("0 %", 1, 1), Group("100 %", 1, 2)))
    assert groups([], TASK) == Groups("depth", (Group("0 %", 0, 0), Group("100 %", 0, 0)))
    assert groups(judged("correct"), build_task("gsm-tiny", limit=1)) is None


def test_a_table_has_a_row_a_group_and_a_column_a_cell(make_result: MakeResult) -> None:
    one = replace(make_result("a"), groups=Groups("depth", (Group("0 %", 1, 4), Group("50 %", 0, 0))))
    two = replace(make_result("b"), groups=Groups("depth", (Group("50 %", 3, 3), Group("100 %", 0, 2))))
    other = replace(make_result("c"), groups=Groups("offset", (Group("+1", 1, 1),)))
    (depth, columns), (offset, _) = rows.group_tables([one, two, make_result("d"), other])
    assert (depth, offset) == ("depth", "offset")
    assert [(column.title, column.texts) for column in columns] == [
        ("depth", ("0 %", "50 %", "100 %")),
        ("a", ("0.250 (1/4)", "-", "-")),
        ("b", ("-", "1.000 (3/3)", "0.000 (0/2)")),
    ]
    assert rows.groups_text(one) == "by depth: 0 % 1/4, 50 % 0/0"
    assert rows.groups_text(make_result("d")) is None


def grown(cached: float | None, external: float | None, local: float | None) -> dict[str, float | None]:
    return {c.CACHED_TOKENS: cached, c.EXTERNAL_TOKENS: external, c.LOCAL_TOKENS: local}


@pytest.mark.parametrize(
    ("prefill", "found"),
    [
        (grown(60, 0, 40), PromptSources(70, 0, 40)),
        (grown(0, 30, 10), PromptSources(10, 30, 10)),
        (grown(None, 0, 40), None),
        (grown(0, 0, None), None),
    ],
)
def test_only_servers_that_prefill_count(prefill: dict[str, float | None], found: PromptSources | None) -> None:
    counters = {"prefill-0": prefill, "prefill-1": grown(10, 0, 0), "decode-0": grown(5, 95, 1)}
    roles = {"prefill-0": "prefill", "prefill-1": "prefill", "decode-0": "decode"}
    assert prompt_sources(counters, roles) == found


def test_a_server_alone_prefills_and_no_server_is_not_known() -> None:
    assert prompt_sources({"monolithic-0": grown(1, 2, 3)}, {"monolithic-0": "monolithic"}) == PromptSources(1, 2, 3)
    assert prompt_sources({}, {}) is None
    assert PromptSources(1, 2, 3).hit_rate == 0.5 and PromptSources(0, 0, 0).hit_rate is None


def test_hits_have_a_column_only_where_there_are_any(make_result: MakeResult) -> None:
    def titles(*sources: PromptSources | None) -> dict[str, tuple[str, ...]]:
        cells = [replace(make_result(f"c{i}"), sources=found) for i, found in enumerate(sources)]
        return {column.title: column.texts for column in rows.speed_columns(cells)}

    assert "cache\nhits" not in titles(None, PromptSources(0, 0, 10))
    shown = titles(None, PromptSources(0, 0, 10), PromptSources(5, 0, 5), PromptSources(1, 1, 2))
    assert shown["cache\nhits"] == ("-", "0.0 %", "50.0 %", "50.0 %\n(25.0 % loaded)")
    assert "total\ntokens/s" in shown
