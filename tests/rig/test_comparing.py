"""`pdrig compare`: who is held against whom, what is refused and why, and what comes of the rest."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rig.compared import Compared, Held
from rig.comparing import compare_sides, exit_code
from rig.errors import UsageError
from rig.records import Canaries, Evidence, Finding, Gates, Pair, Sequential
from rig.rescoring import rescore_run
from rig.saving import save
from rig.sides import read_sides
from rig.store import RunFolder

StoreRun = Callable[..., RunFolder]
ASYNC = {"async_scheduling": True}


def compared(candidate: object, baseline: object, scorer: str | None = None) -> Compared:
    return compare_sides(read_sides(str(candidate), scorer), read_sides(str(baseline), scorer))


def only(found: Compared) -> Held:
    (held,) = found.held
    return held


def state(held: Held) -> str | None:
    return held.verdict.state if held.verdict else None


@pytest.fixture
def stored(store_run: StoreRun, tmp_path: Path) -> Callable[..., Path]:
    """A file of baselines saved from a run: `stored({cell: {...}})`."""

    def make(cells: dict[str, dict[str, Any]]) -> Path:
        run = store_run("origin", cells)
        assert all(said.saved for said in save(run, tmp_path / "b"))
        return tmp_path / "b" / "tiny.math.json"

    return make


def test_two_runs_are_matched_by_labels_and_never_by_id(store_run: StoreRun) -> None:
    old = store_run("old", {"mono": {}, "pd-x": {"labels": ASYNC}, "pd-y": {}, "pd-gone": {"labels": {"decode_tp": 4}}})
    new = store_run("new", {"mono": {}, "pd-y": {"labels": ASYNC}, "pd-new": {"labels": {"decode_tp": 2}}, "pd-z": {}})
    found = compared(new.path, old.path)
    assert [(h.candidate.name, h.baseline.name) for h in found.held] == [
        ("new:mono", "old:mono"),
        ("new:pd-y", "old:pd-x"),
        ("new:pd-z", "old:pd-y"),
    ]
    assert all(state(h) == "pass" and h.differences == () for h in found.held)
    alone = {u.name: (u.side, u.nearest, [d.label for d in u.differences]) for u in found.unmatched}
    assert alone == {
        "new:pd-new": ("candidate", "old:pd-y", ["decode_tp"]),
        "old:pd-gone": ("baseline", "new:pd-new", ["decode_tp"]),
    }
    assert exit_code(found) == 0


def test_a_cell_is_looked_up_in_a_run_by_its_labels(store_run: StoreRun) -> None:
    old = store_run("old", {"mono": {}, "pd-x": {"labels": ASYNC}, "pd-y": {}})
    new = store_run("new", {"pd-a": {"labels": ASYNC}, "pd-b": {}})
    for candidate, baseline in ((f"{new.path}:pd-a", old.path), (new.path, f"{old.path}:pd-x")):
        found = compared(candidate, baseline)
        assert (only(found).candidate.name, only(found).baseline.name) == ("new:pd-a", "old:pd-x")
        assert found.unmatched == ()


def test_two_cells_are_compared_whatever_differs_and_it_is_named(store_run: StoreRun) -> None:
    run = store_run("r", {"pd-off": {}, "pd-on": {"labels": ASYNC, "wrong": range(12), "slower": 1.5}})
    for on, off in (
        (f"{run.path}:pd-on", f"{run.path}:pd-off"),
        (run.cell("pd-on"), run.cell("pd-off")),
    ):
        held = only(compared(on, off))
        assert [(d.label, d.candidate, d.baseline) for d in held.differences] == [("async_scheduling", True, False)]
        assert held.verdict is not None and held.verdict.state == "regression"
        assert "after correction for all tests of this comparison, level" in held.verdict.reasons[0].text
        c = held.comparison
        assert c is not None and (c.b, c.c, c.n, c.baseline) == (12, 0, 200, "pd-off")
        assert c.delta == pytest.approx(-0.06) and c.p_value == pytest.approx(2.0**-12)
        ratios = {r.metric: r.value for r in c.ratios}
        assert ratios["ttft_p50"] == pytest.approx(1.5, rel=1e-3)
        assert ratios["requests_per_s"] == pytest.approx(1.0, rel=0.01)
        assert exit_code(compared(on, off)) == 1


def test_a_stored_baseline_gives_the_same_pairs_as_the_run_it_came_from(
    store_run: StoreRun, stored: Callable[..., Path]
) -> None:
    path = stored({"mono": {}, "pd": {"wrong": {1, 2, 3}, "failed": {9}}})
    new = store_run("new", {"pd": {"wrong": {3, 4}}})
    by_run, by_file = only(compared(new.path, path.parent.parent / "origin")), only(compared(new.path, path))
    one = only(compared(f"{new.path}:pd", f"{path}:pd"))
    a, b = by_run.comparison, by_file.comparison
    assert a is not None and b is not None and one.comparison == b
    assert (a.b, a.c, a.n) == (b.b, b.c, b.n) == (1, 2, 199)
    assert (a.p_value, a.ci95, a.upper_drop, a.delta) == (b.p_value, b.ci95, b.upper_drop, b.delta)
    assert b.ratios == () and a.ratios != ()
    assert b.output_agreement is None, "a stored baseline has no texts"
    assert b.baseline == "tiny.math.json" and by_file.baseline.file == str(path) and by_file.baseline.stored
    assert by_file.baseline.latency_ms["ttft"].p50 > 0
    assert any("is stored without texts, tokens and times" in note for note in by_file.notes)


def test_a_stored_baseline_can_be_the_candidate(store_run: StoreRun, stored: Callable[..., Path]) -> None:
    path = stored({"pd": {"wrong": range(15)}})
    held = only(compared(path, store_run("new", {"pd": {}}).path))
    assert state(held) == "regression" and held.comparison is not None
    assert held.comparison.where == (), "order and concurrency are not known of it"


@pytest.mark.parametrize(
    ("about", "words"),
    [
        (
            {"task": {"name": "gsm8k-vllm"}},
            "other tasks: gsm8k-vllm version 3.0 here, gsm8k version 3.0 there; run both",
        ),
        ({"task": {"version": "2.0"}}, "other tasks: gsm8k version 2.0 here, gsm8k version 3.0 there"),
        ({"words": "b"}, "other prompts: 200 of 200 shared questions were put in other words (q0000 is the first)"),
        (
            {"task": {"params": {"max_tokens": 512, "temperature": 0.0, "stop": ["Question:"]}}},
            "other decoding: max_tokens (512 here, 256 there); run one again with the other's `max_tokens`",
        ),
        (
            {"task": {"params": {"max_tokens": 256, "temperature": 1.0}}},
            "temperature (1.0 here, 0.0 there), stop (none here, ['Question:'] there); run one again with the other's "
            "`temperature` and `stop`",
        ),
        ({"task": {"endpoint": "chat"}}, "endpoint (chat here, completions there)"),
        ({"task": {"score_reasoning": True}}, "reasoning was scored here only; run one again with the other's"),
        (
            {"task": {"scorer": "robust"}},
            "other scorers: robust here, gsm8k-strict there; score the stored texts of both again with `pdrig rescore "
            "RUN --scorer robust`, then compare with --scorer robust",
        ),
        ({"task": {"scorer_sha256": "x" * 64}}, "other versions of the scorer gsm8k-strict; score the stored texts"),
        ({"status": "interrupted"}, "new:pd cannot be compared: it is not finished: go on with `pdrig sweep --resume`"),
        ({"status": "failed", "failure": "OOM"}, "new:pd cannot be compared: it failed (OOM): run it again"),
        ({"status": "invalid", "failure": "no data"}, "it is invalid (The cell could not be evaluated: no data): mend"),
        ({"evidence": Evidence(False)}, "it is invalid (Nothing proves that the KV cache moved"),
        ({"task": {"n": 201}}, "its files are damaged: 201 questions, 200 whole records, 200 judged"),
    ],
)
@pytest.mark.parametrize("kind", ["run", "file"])
def test_what_cannot_be_compared_is_refused_with_what_would_help(
    store_run: StoreRun, stored: Callable[..., Path], about: dict[str, Any], words: str, kind: str
) -> None:
    path = stored({"pd": {}})
    baseline = path if kind == "file" else path.parent.parent / "origin"
    refused = only(found := compared(store_run("new", {"pd": about}).path, baseline))
    assert refused.refused is not None and words in refused.refused and "\n" not in refused.refused
    assert refused.comparison is None and refused.verdict is None
    assert exit_code(found) == 2


def test_a_refusal_of_the_baseline_names_it(store_run: StoreRun) -> None:
    old = store_run("old", {"pd": {"status": "failed", "failure": "OOM"}})
    held = only(compared(store_run("new", {"pd": {}}).path, old.path))
    assert held.refused == "old:pd cannot be compared: it failed (OOM): run it again"


def test_a_cell_that_was_planned_and_has_no_result_is_unfinished(store_run: StoreRun) -> None:
    old, new = store_run("old", {"pd": {}}), store_run("new", {"pd": {}})
    (new.cell("pd") / "cell.json").unlink()
    assert "it has no result yet: finish the run with `pdrig sweep --resume`" in (
        only(compared(new.path, old.path)).refused or ""
    )


@pytest.mark.parametrize("name", ["cell.json", "requests.jsonl", "judged.jsonl"])
def test_a_torn_file_is_refused_by_name(store_run: StoreRun, name: str) -> None:
    old, new = store_run("old", {"pd": {}, "mono": {}}), store_run("new", {"pd": {}, "mono": {}})
    (old.cell("pd") / name).write_text("{}\n")
    pd, mono = (found := compared(new.path, old.path)).held
    assert name in (pd.refused or "") and exit_code(found) == 2
    assert state(mono) == "pass", "one refusal leaves the other pairs alone"


def test_fewer_questions_are_no_reason_to_refuse(store_run: StoreRun) -> None:
    old = store_run("old", {"pd": {"n": 400, "wrong": {1, 300, 301, 302}, "failed": {399}}})
    held = only(compared(store_run("new", {"pd": {"n": 200, "wrong": {2}}}).path, old.path))
    c = held.comparison
    assert c is not None and (c.n, c.b, c.c) == (200, 1, 1)
    assert (held.candidate.asked, held.baseline.asked, held.shared) == (200, 400, 200)
    assert held.notes == (
        "200 questions were asked here, 400 there: accuracy is over the 200 that both were asked, speed over all",
    )
    assert held.verdict is not None and "left out" not in held.verdict.reasons[0].text


def test_errors_of_questions_that_the_other_side_was_not_asked_do_not_count(
    store_run: StoreRun, stored: Callable[..., Path]
) -> None:
    path = stored({"pd": {"n": 400, "failed": range(300, 340)}})
    for baseline in (path, path.parent.parent / "origin"):
        held = only(compared(store_run("new", {"pd": {"failed": range(6)}}).path, baseline))
        assert held.verdict is not None and held.verdict.reasons[0].channel == "errors"
        assert "6 of 200 questions failed here (decode reset 6), 0 of 200 on" in held.verdict.reasons[0].text


def test_no_shared_question_is_refused(store_run: StoreRun) -> None:
    old, new = store_run("old", {"pd": {}}), store_run("new", {"pd": {}})
    for path in (new.requests("pd"), new.cell("pd") / "judged.jsonl"):
        path.write_text(path.read_text().replace('"q0', '"x0'))
    assert "no question was put to both sides" in (only(compared(new.path, old.path)).refused or "")


def test_both_rescored_by_one_scorer_can_be_compared(store_run: StoreRun, stored: Callable[..., Path]) -> None:
    path = stored({"pd": {"task": {"scorer": "robust"}, "wrong": {1, 2}}})
    old, new = RunFolder(path.parent.parent / "origin"), store_run("new", {"pd": {"wrong": {2}}})
    assert only(compared(new.path, old.path)).refused is not None
    refused = only(compared(new.path, old.path, "robust")).refused
    assert refused is not None and f"`pdrig rescore {new.path} --scorer robust` does it" in refused
    for run in (old, new):
        list(rescore_run(run, "robust"))
    held = only(compared(new.path, old.path, "robust"))
    assert held.refused is None and held.comparison is not None and (held.comparison.b, held.comparison.c) == (0, 1)
    assert held.candidate.judged_file == str(new.cell("pd") / "judged.robust.jsonl")
    assert held.candidate.accuracy is not None and held.candidate.accuracy.scorer == "robust"
    assert only(compared(new.path, path, "robust")).comparison is not None
    both = only(compared(new.path, path, "gsm8k-vllm")).refused or ""
    assert "--scorer gsm8k-vllm` does it; " in both and "it holds outcomes of robust and no texts" in both

    scored = new.cell("pd") / "judged.robust.jsonl"
    scored.write_text(scored.read_text().replace('"wrong"', '"correct"'))
    assert "is not what this version of robust gives" in (only(compared(new.path, old.path, "robust")).refused or "")


def test_the_error_rate_is_spent_once_over_all_pairs(store_run: StoreRun) -> None:
    """Five losses in one of several cells: p = 1/32 alone, and no alarm among them all."""
    tps = range(1, 9)
    old = store_run("old", {f"pd{i}": {"labels": {"decode_tp": i}} for i in tps})
    new = store_run("new", {f"pd{i}": {"labels": {"decode_tp": i}, "wrong": range(5 if i == 1 else 0)} for i in tps})
    alone = only(compared(f"{new.path}:pd1", f"{old.path}:pd1"))
    assert alone.comparison is not None and alone.comparison.p_value == pytest.approx(1 / 32)
    whole = compared(new.path, old.path)
    assert state(whole.held[0]) == "inconclusive" and exit_code(whole) == 0
    (test,) = [t for t in whole.held[0].tests if t.channel == "accuracy"]
    assert test.p_adjusted is not None and test.p_adjusted > 0.05


def test_damage_that_the_candidate_showed_is_a_regression_whatever_its_accuracy(store_run: StoreRun) -> None:
    evidence = Evidence(True, transfers=200, failed=0, expired=0, canaries=Canaries(20, 0, 3))
    new = store_run("new", {"pd": {"evidence": evidence, "state": "regression"}})
    found = compared(new.path, store_run("old", {"pd": {}}).path)
    assert state(only(found)) == "regression" and exit_code(found) == 1
    invalid = Evidence(True, findings=(Finding("rig", "the proxy died", "proxy.log", "invalid"),))
    other = store_run("other", {"pd": {"evidence": invalid}})
    assert "it is invalid (The proxy died)" in (only(compared(other.path, new.path)).refused or "")


def test_speed_is_held_to_a_bound_on_equal_hardware_only(store_run: StoreRun) -> None:
    gates = Gates(max_ttft_ratio=1.2)
    new = store_run("new", {"pd": {"slower": 2.0, "gates": gates}})
    held = only(compared(new.path, store_run("old", {"pd": {}}).path))
    assert state(held) == "regression" and held.verdict is not None
    assert held.verdict.reasons[0].channel == "latency"
    host = {"machine": "x86_64", "cpus": 64, "gpus": ["0, H200"], "environment": {"UCX_TLS": "tcp"}}
    elsewhere = only(compared(new.path, store_run("far", {"pd": {}}, host=host, versions={"pdrig": "9"}).path))
    assert state(elsewhere) == "pass"
    assert elsewhere.notes == (
        "the machines differ in cpus (2 here, 64 there), gpus ([] here, ['0, H200'] there), UCX_TLS (none here, tcp "
        "there): speed is theirs as well, and is held to no bound",
        "the rigs differ in pdrig (0.1.0 here, 9 there)",
    )


def test_asking_for_logprobs_on_one_side_leaves_accuracy_and_takes_speed(store_run: StoreRun) -> None:
    params = {"max_tokens": 256, "temperature": 0.0, "stop": ["Question:"], "logprobs": 1}
    held = only(
        compared(store_run("new", {"pd": {"task": {"params": params}}}).path, store_run("old", {"pd": {}}).path)
    )
    assert state(held) == "pass" and held.comparison is not None and held.comparison.ratios == ()
    assert held.notes == (
        "one side asked for token ids or logprobs and the other did not, which costs time: speed has no ratio",
    )


def test_what_a_reader_must_know_of_either_side_is_said(store_run: StoreRun) -> None:
    old = store_run("old", {"pd": {"state": "regression", "sequential": Sequential(200, 400, "regression", 30.0, 0.1)}})
    new = store_run("new", {"pd": {}, "pd.rerun": {"rerun_of": "pd"}})
    first, again = compared(new.path, old.path).held
    assert first.notes == (
        "old:pd stopped early, after 200 of 400 questions: where it stopped depended on its answers, so the p-value is "
        "not exact",
        "the verdict on old:pd in its own run is regression",
    )
    assert again.candidate.name == "new:pd.rerun" and "new:pd.rerun repeats pd, which was red" in again.notes


@pytest.mark.parametrize(("block_size", "found"), [(16, ["prompts of k x 16 tokens"]), (None, [])])
def test_losses_by_block_are_found_where_the_cell_tells_its_block_size(
    store_run: StoreRun, block_size: int | None, found: list[str]
) -> None:
    """A cell of an older rig does not; the size is not known then, whatever its pairs would tell."""
    whole_blocks = range(12, 200, 16)
    new = store_run("new", {"pd": {"wrong": whole_blocks, "block_size": block_size}})
    old = store_run("old", {"pd": {}})
    pairs = [
        Pair(r.sample_id, r.request_id, "b", "correct", "correct", prompt_tokens=n, block_remainder=n % 16)
        for r in new.read_requests("pd")
        if (n := r.prompt_tokens) is not None
    ]
    new.write_pairs("pd", "mono", pairs)
    if block_size is None:
        path = new.cell("pd") / "cell.json"
        path.write_text(json.dumps({k: v for k, v in json.loads(path.read_text()).items() if k != "block_size"}))
    c = only(compared(new.path, old.path)).comparison
    assert c is not None and [s.value for s in c.where if s.axis == "block"] == found


def test_an_evaluation_and_a_copied_cell_are_cells(store_run: StoreRun, tmp_path: Path) -> None:
    run = store_run("r", {"mono": {}, "pd": {"wrong": {1}}})
    lone = tmp_path / "copied"
    run.cell("mono").rename(lone)
    held = only(compared(run.cell("pd"), lone))
    assert held.baseline.name == str(lone) and held.refused is None
    assert [d.label for d in held.differences] == ["prefill_tp"]
    assert held.candidate.name == "r:pd"


@pytest.mark.parametrize(
    ("argument", "words"),
    [
        ("nowhere", "neither a run (no run.json), nor a cell (no cell.json), nor a stored baseline"),
        ("new:nope", "has no cell nope; it has pd"),
        ("b/tiny.math.json:nope", "has no baseline nope; it has pd"),
        ("new/run.json", "not a baseline that `pdrig baseline save` wrote?"),
    ],
)
def test_what_is_none_of_these_is_one_line(
    store_run: StoreRun, stored: Callable[..., Path], tmp_path: Path, argument: str, words: str
) -> None:
    stored({"pd": {}})
    store_run("new", {"pd": {}})
    with pytest.raises(UsageError) as error:
        read_sides(str(tmp_path / argument))
    assert words in str(error.value) and "\n" not in str(error.value)


def test_runs_without_a_common_cell_name_the_nearest_two(store_run: StoreRun) -> None:
    old = store_run("old", {"pd": {"labels": {"engine": "base"}}})
    new = store_run("new", {"pd": {"labels": {"engine": "pr"}}})
    with pytest.raises(
        UsageError, match=r"nearest are new:pd and old:pd, which differ in engine \(pr here, base there\)"
    ):
        compared(new.path, old.path)
    with pytest.raises(
        UsageError, match=r"nearest are new:pd and old:pd, which differ in engine \(pr here, base there\)"
    ):
        compared(f"{new.path}:pd", old.path)


def test_nothing_is_written(store_run: StoreRun, tmp_path: Path) -> None:
    old, new = store_run("old", {"pd": {}}), store_run("new", {"pd": {"wrong": range(30)}})

    def content() -> dict[Path, bytes]:
        return {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}

    before = content()
    found = compared(new.path, old.path)
    assert content() == before
    assert replace(found) == compared(new.path, old.path), "the same files give the same figures"


def test_a_sound_cell_whose_own_baseline_was_not_is_compared(store_run: StoreRun) -> None:
    """`invalid` in its run for want of a usable baseline says nothing against the cell itself."""
    old, new = store_run("old", {"pd": {"state": "invalid"}}), store_run("new", {"pd": {"state": "invalid"}})
    held = only(compared(new.path, old.path))
    assert state(held) == "pass"
    assert held.notes == ("the verdict on old:pd in its own run is invalid",)
