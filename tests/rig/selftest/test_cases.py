"""What a self-test plants: what the issue that it answers to asks for, and nothing twice."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from rig.config import load_config
from rig.faults.control import Control
from rig.machine import Machine
from rig.plan import plan_sweep
from rig.planned import CellPlan, TaskPlan
from rig.records import Channel, Gates, State
from rig.selftest.cases import CONTROL, DAMAGE, KV_FAULTS, RARE, Case, baseline_of, cases, cell_of, left_out
from rig.selftest.run import templates

TASK = TaskPlan("tiny", "gsm-tiny", 10, 2, 64, 8, True, 0)
TEMPLATE = CellPlan("pd", {"model": "m"}, "pd", "d", TASK, Gates(), ("mono",), rerun=True, early_stop=True)
MONO = CellPlan("mono", {"model": "m"}, "monolithic", "m", TASK, Gates())
BOTH = pytest.mark.parametrize("short", [False, True], ids=["whole", "short"])


@BOTH
def test_names_are_unique_and_can_be_folders(short: bool) -> None:
    names = [case.name for case in cases(short)]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"[a-z0-9_.-]+", name) for name in names)


def test_every_fault_of_the_kv_cache_at_ten_percent_of_two_hundred_over_five_seeds() -> None:
    found = Counter((c.fault, c.seed) for c in cases(False) if c.rate == 0.1 and c.questions == 200 and c.fault)
    for fault in KV_FAULTS:
        assert [found[fault, seed] for seed in range(1, 6)] == [1] * 5, fault


def test_the_rare_ones_at_two_percent_of_a_thousand_over_five_seeds() -> None:
    rare = [c for c in cases(False) if c.rate == 0.02]
    assert {(c.fault, c.seed, c.questions) for c in rare} == {(f, s, 1000) for f in RARE for s in range(1, 6)}


def test_ten_clean_runs_of_four_hundred_beside_the_control() -> None:
    clean = [c for c in cases(False) if c.fault is None]
    assert [c.name for c in clean] == [CONTROL, *(f"clean-{i}" for i in range(1, 11))]
    assert {c.questions for c in clean} == {400} and len({c.seed for c in clean}) == 11
    assert all(c.channels == () and c.control == Control() for c in clean)


def test_attention_alone_and_state_alone() -> None:
    parts = [c for c in cases(False) if "groups" in c.params]
    assert [(c.fault, c.rate, c.params) for c in parts] == [
        ("late_zeroing", 1.0, {"groups": "attention"}),
        ("late_zeroing", 1.0, {"groups": "state"}),
    ]


@pytest.mark.parametrize(
    ("fault", "channels"), [("slow_transfer", {"latency"}), ("failed_handshake", {"errors", "transfer"})]
)
@BOTH
def test_what_is_no_damage_is_expected_elsewhere(short: bool, fault: str, channels: set[Channel]) -> None:
    planted = [c for c in cases(short) if c.fault == fault]
    assert planted and all(set(c.channels) == channels for c in planted)


@BOTH
def test_the_control_run_is_first_and_one_engine_follows_the_other(short: bool) -> None:
    listed = cases(short)
    assert listed[0].name == CONTROL
    policies = [c.policy for c in listed]
    assert policies == sorted(policies, key="recompute".__eq__)
    assert {c.fault for c in listed if c.policy == "recompute"} == {"recompute_unwritten"}


def test_the_short_form_plants_every_fault_and_asks_for_much_less() -> None:
    short, whole = cases(True), cases(False)
    assert {c.fault for c in short} == {c.fault for c in whole}
    assert sum(c.questions for c in short) < sum(c.questions for c in whole) / 4
    assert {c.name for c in short} <= {c.name for c in whole}, "what one form found can be looked up in the other"


def test_every_control_file_can_be_read_back(tmp_path: Path) -> None:
    for case in cases(False):
        case.control.write(tmp_path / "faults.json")
        assert Control.read(tmp_path / "faults.json") == case.control
        if case.fault:
            [planted] = case.control.faults
            assert (planted.fault, planted.rate, planted.seed) == (case.fault, case.rate, case.seed)


CLEAN = Case("clean", 400, 20, 0)
DAMAGED = Case("zeroed", 200, 10, 1, fault="late_zeroing", rate=0.1, channels=DAMAGE)


@pytest.mark.parametrize(
    ("case", "state", "alarms", "good"),
    [
        (CLEAN, "pass", (), True),
        (CLEAN, "improved", (), True),
        (CLEAN, "inconclusive", (), True),
        (CLEAN, "regression", ("damage",), False),
        (CLEAN, "invalid", (), False),
        (CLEAN, "failed", (), False),
        (CLEAN, "no_baseline", (), False),
        (CLEAN, None, (), False),
        (DAMAGED, "regression", ("damage",), True),
        (DAMAGED, "regression", ("errors", "accuracy"), True),
        (DAMAGED, "regression", ("latency",), False),
        (DAMAGED, "regression", (), False),
        (DAMAGED, "pass", (), False),
        (DAMAGED, "inconclusive", ("damage",), False),
        (DAMAGED, "invalid", ("damage",), False),
        (DAMAGED, "failed", (), False),
        (DAMAGED, None, (), False),
    ],
)
def test_what_the_rig_should_have_said(
    case: Case, state: State | None, alarms: tuple[Channel, ...], good: bool
) -> None:
    assert case.as_expected(state, alarms) == good


@pytest.mark.parametrize("case", [CLEAN, DAMAGED], ids=["clean", "planted"])
def test_a_case_is_a_cell_of_its_own(case: Case) -> None:
    control = replace(TEMPLATE, id=CONTROL)
    cell = cell_of(case, TEMPLATE, MONO, control)
    assert (cell.id, cell.baselines, cell.deployment) == (case.name, ("mono", CONTROL), "d")
    assert (cell.task.limit, cell.task.canaries, cell.seed) == (case.questions, case.canaries, case.seed)
    assert not (cell.rerun or cell.early_stop or cell.noise_floor), "what it says must not depend on what it finds"
    assert cell.shuffled == (case.fault is None)
    assert cell.labels == {
        "model": "m",
        "case": case.name,
        "fault": case.fault,
        "rate": case.rate,
        "seed": case.seed,
    }
    assert cell_of(case, TEMPLATE, MONO, None).baselines == ("mono",)


@BOTH
def test_the_baseline_is_asked_all_that_any_case_asks_and_twice(short: bool) -> None:
    base = baseline_of(MONO, short)
    assert base.noise_floor and base.task.limit == max(c.questions for c in cases(short))
    assert base.task.canaries == 100


@pytest.mark.parametrize("name", ["selftest.yaml", "selftest_sim.yaml"])
def test_the_sweep_file_has_what_a_self_test_needs(name: str) -> None:
    root = Path(__file__).parents[3]
    plan = plan_sweep(load_config(root / "configs" / name), Machine())
    found = templates(plan)
    assert found.baseline.kind == "monolithic" and set(found.by_policy) == {"fail", "recompute"}
    assert all(cell.task.divergence == "logprobs" and cell.task.warmup for cell in found.by_policy.values())


@BOTH
def test_what_cannot_be_planted_in_a_connector_is_left_out_with_its_reason(short: bool) -> None:
    push = ("MultiConnector", "NixlPushConnector", "OffloadingConnector")
    assert {c.fault for c in cases(short)} - {c.fault for c in cases(short, push)} == {"stale_blocks"}
    assert list(left_out(push)) == ["stale_blocks"] and left_out(("NixlConnector",)) == {}
