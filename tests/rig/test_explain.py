from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rig.explain import explain, is_green, is_red, sound_beside
from rig.records import CellResult, State, Status, Verdict


def cell(state: State | None, cell_id: str = "", status: Status = "ok", **labels: Any) -> CellResult:
    name = cell_id or "-".join([state or "none", *(f"{n}={v}" for n, v in labels.items())])
    return CellResult(name, labels, "pd", "d", status, verdict=None if state is None else Verdict(state))


def red(**labels: Any) -> CellResult:
    return cell("regression", **labels)


def green(**labels: Any) -> CellResult:
    return cell("pass", **labels)


def text(*cells: CellResult) -> str:
    found = explain(cells)
    assert found is not None
    return found.text


# Red and green


@pytest.mark.parametrize(
    ("state", "status", "colour"),
    [
        ("regression", "ok", "red"),
        ("xfail", "ok", "red"),
        ("xfail", "failed", None),
        ("failed", "failed", None),
        ("pass", "ok", "green"),
        ("improved", "ok", "green"),
        ("xpass", "ok", "green"),
        ("inconclusive", "ok", None),
        ("invalid", "invalid", None),
        ("no_baseline", "ok", None),
        (None, "ok", None),
    ],
)
def test_colours(state: State | None, status: Status, colour: str | None) -> None:
    result = cell(state, status=status)
    assert (is_red(result), is_green(result)) == (colour == "red", colour == "green")


def test_baselines_and_reruns_are_neither() -> None:
    for state in ("regression", "pass"):
        verdict = Verdict(state)  # type: ignore[arg-type]
        for result in (
            CellResult("m", {}, "monolithic", "d", "ok", verdict=verdict),
            CellResult("r", {}, "pd", "d", "ok", verdict=verdict, rerun_of="x"),
        ):
            assert not is_red(result) and not is_green(result)


def test_without_a_red_cell_there_is_nothing_to_explain() -> None:
    assert explain([]) is None
    assert explain([green(tp=1), cell("failed", "f", "failed", tp=2), cell(None, tp=4)]) is None


def test_without_a_green_cell_no_label_is_blamed() -> None:
    assert explain([red(tp=1)]) is None
    found = explain([red(tp=1), red(tp=2)])
    assert found is not None and (found.shared, found.irrelevant, found.pair) == ({}, (), None)
    assert found.text == "All 2 cells that could be judged are red: no label tells them from sound ones."


# What they share


def test_one_label_and_the_smallest_step() -> None:
    cells = [red(async_scheduling=True, decode_tp=tp, cell_id=f"on-{tp}") for tp in (1, 2, 4)]
    cells += [green(async_scheduling=False, decode_tp=tp, cell_id=f"off-{tp}") for tp in (1, 2)]
    found = explain(cells)
    assert found is not None
    assert found.shared == {"async_scheduling": True} and found.irrelevant == ("decode_tp",)
    assert found.pair == ("on-1", "off-1", {"async_scheduling": (False, True)})
    assert found.text == (
        "All 3 red cells have async_scheduling on; no green cell has. decode_tp does not matter. "
        "Smallest step from green to red: off-1 -> on-1, async_scheduling off -> on."
    )


def test_two_and_three_labels() -> None:
    grid = [(a, b, c) for a in (0, 1) for b in (0, 1) for c in (0, 1)]

    def told(labels: int) -> str:
        return text(*((red if all(at[:labels]) else green)(a=at[0], b=at[1], c=at[2]) for at in grid))

    assert told(2).startswith("Both red cells have a 1 and b 1; no green cell has both. c does not matter. ")
    assert told(3).startswith("The red cell has a 1, b 1 and c 1; no green cell has all three. Smallest step ")


def test_several_that_fit_equally_well_are_all_named() -> None:
    said = text(red(a=1, b=1, c=1), red(a=1, b=1, c=2), green(a=0, b=0, c=1), green(a=0, b=0, c=2))
    assert said.startswith(
        "Both red cells have a 1 or b 1; no green cell has. These cells cannot tell which of them it is. "
        "c does not matter. "
    )
    joint = text(red(a=1, b=1, c=1), green(a=1, b=0, c=0), green(a=0, b=1, c=1))
    assert joint.startswith("The red cell has a 1 and b 1, or a 1 and c 1; no green cell has both. ")


def test_too_many_cannot_be_told_apart() -> None:
    found = explain([red(a=1, b=1, c=None, d=True), green(a=0, b=0, c="x", d=False)])
    assert found is not None and found.shared == {}
    assert found.text.startswith(
        "The red cell has 4 labels (a 1, b 1, no c and d on) that no green cell has: these cells cannot tell them "
        "apart. Smallest step "
    )


def test_a_number_may_matter_from_a_bound_on() -> None:
    """Case 1: clean at a concurrency of 1, damaged from 16 on, under async scheduling alone."""
    cells = [red(on=True, concurrency=c) for c in (16, 32)] + [green(on=True, concurrency=c) for c in (1, 8)]
    cells += [green(on=False, concurrency=c) for c in (1, 8, 16, 32)]
    found = explain(cells)
    assert found is not None and found.shared == {"on": True, "concurrency": "16 or more"}
    assert found.text.startswith("Both red cells have on on and concurrency 16 or more; no green cell has both. ")
    low = text(*(red(block=b) for b in (4, 8)), green(block=16))
    assert low.startswith("Both red cells have block 8 or less; no green cell has.")


def test_where_nothing_separates_it_says_so_and_dismisses_nothing() -> None:
    found = explain([red(a=0, b="x"), red(a=1, b="y"), green(a=0, b="y"), green(a=1, b="x")])
    assert found is not None and (found.shared, found.irrelevant) == ({}, ())
    assert found.text.startswith("No combination of up to 3 labels is in every red cell and in no green one. Smallest")
    twins = text(red(a=1), cell("pass", "twin", a=1))
    assert twins.endswith("twin is green and regression-a=1 is red with the same labels: the fault comes and goes.")


def test_a_value_that_only_green_cells_have_may_matter() -> None:
    found = explain([red(a=1, tp=1), red(a=1, tp=2), green(a=0, tp=4)])
    assert found is not None and found.shared == {"a": 1} and found.irrelevant == ()


def test_true_is_not_one() -> None:
    assert text(red(a=True), green(a=1)).startswith("The red cell has a on; no green cell has.")


# Properties

VALUES = st.sampled_from([0, 1, 2, True, None, "x"])
LABELS = st.fixed_dictionaries({}, optional=dict.fromkeys("abcd", VALUES))
COLOURED = st.lists(st.tuples(st.sampled_from(["regression", "pass", "invalid"]), LABELS), max_size=8)


def has(labels: Mapping[str, Any], name: str, value: Any) -> bool:
    mine = labels.get(name)
    if isinstance(value, str) and " or " in value:
        bound = int(value.split()[0])
        return bool(mine >= bound if value.endswith("more") else mine <= bound)
    return type(mine) is type(value) and mine == value


@given(COLOURED)
def test_what_is_named_separates(drawn: list[tuple[State, dict[str, Any]]]) -> None:
    cells = [cell(state, f"c{i}", **labels) for i, (state, labels) in enumerate(drawn)]
    reds, greens = [c for c in cells if is_red(c)], [c for c in cells if is_green(c)]
    found = explain(cells)
    if found is None:
        assert not reds or (len(reds) == 1 and not greens)
        return
    shared = found.shared.items()
    assert all(has(c.labels, n, v) for c in reds for n, v in shared)
    assert not shared or not any(all(has(c.labels, n, v) for n, v in shared) for c in greens)
    assert not set(found.irrelevant) & set(found.shared)
    if found.pair is None:
        assert not greens
        return
    by_id = {c.cell_id: c.labels for c in cells}
    mine, theirs = by_id[found.pair[0]], by_id[found.pair[1]]
    assert set(found.pair[2]) == {n for n in "abcd" if not has(theirs, n, mine.get(n))}
    fewest = min(sum(not has(g.labels, n, r.labels.get(n)) for n in "abcd") for r in reds for g in greens)
    assert len(found.pair[2]) == fewest


@given(st.sets(st.sampled_from("abc"), min_size=1), st.integers(0, 3))
def test_a_planted_cause_is_found_on_a_full_grid(cause: set[str], spare: int) -> None:
    """Every combination of three labels, of which some must be on together, and one that does not matter."""
    cells = []
    for i in range(8 * (spare + 1)):
        labels = {name: bool(i >> k & 1) for k, name in enumerate("abc")} | {"d": i // 8}
        cells.append(cell("regression" if all(labels[n] for n in cause) else "pass", f"c{i}", **labels))
    found = explain(cells)
    assert found is not None and found.shared == dict.fromkeys(sorted(cause), True)
    assert set(found.irrelevant) == set("abc") - cause | ({"d"} if spare else set())
    assert found.pair is not None and len(found.pair[2]) == 1 and set(found.pair[2]) <= cause


# Beside one cell


def test_sound_cells_that_differ_in_one_label_are_named_by_it() -> None:
    bad = red(engine="b", async_scheduling=True, tp=2)
    others = [
        green(engine="b", async_scheduling=False, tp=2),
        green(engine="a", async_scheduling=True, tp=2),
        cell("improved", engine="c", async_scheduling=True, tp=2),
        green(engine="a", async_scheduling=False, tp=2),
        cell("inconclusive", engine="b", async_scheduling=True, tp=1),
    ]
    assert sound_beside(bad, [bad, *others]) == {"async_scheduling": [False], "engine": ["a", "c"]}
    assert sound_beside(bad, [bad]) == {}


def test_true_is_not_one_beside_a_cell_either() -> None:
    assert sound_beside(red(x=1), [green(x=True)]) == {"x": [True]}
