"""Workloads on the CPU engine: what is asked of a hand-off, and passes through a storage that gives blocks back."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tiny_models import keep, rows
from tiny_sweeps import shipped, written

from evals.tiny_hybrid.problems import distinct
from rig.faults.control import ENVIRONMENT, Control, Fault, read_hits

pytestmark = [pytest.mark.real, pytest.mark.long, pytest.mark.timeout(3000)]

Start = Callable[..., Any]
ASKED = 160
"""Enough for a pass at a margin of 0.02 when no answer flips."""
SHARED = 0.6
BLOCK = 128
"""Tokens of a block of the tiny model, by its engine: its state is smaller than that many tokens of attention."""
TASKS: dict[str, dict[str, Any]] = {
    "unshared": {"task": "prefill-heavy", "words": 300, "divergence": "logprobs"},
    "shared": {"task": "prefill-heavy", "words": 300, "shared": SHARED, "divergence": "logprobs"},
    "edges": {"task": "boundaries", "questions": "gsm-tiny", "shots": 5, "multiples": 3},
    "needles": {"task": "needles", "questions": "gsm-tiny"},
    "sums": {"task": {"file": "sums.yaml"}},
}


def sums(folder: Path) -> None:
    """A task of one's own: held-out problems of the tiny model's kind."""
    told = [{"question": p.question, "answer": p.solution} for p in distinct("test", 5, ASKED)]
    (folder / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in told), encoding="utf-8")
    task = {
        **{"name": "sums", "version": "1", "scorer": "robust", "rows_file": "sums.jsonl", "shots": 5},
        "ask": "Question: {question}\nAnswer:",
        "shot": "Question: {question}\nAnswer: {answer}\n\n",
        "examples": [{"question": p.question, "answer": p.solution} for p in distinct("train", 6, 5)],
        "params": {"max_tokens": 96, "stop": ["\n\n", "Question:"]},
    }
    (folder / "sums.yaml").write_text(json.dumps(task), encoding="utf-8")


def demo(tasks: dict[str, dict[str, Any]], caching: bool) -> dict[str, Any]:
    """The demo's sweep with other tasks; canaries of a task that is not gsm-tiny's kind are too hard for the model."""
    data = shipped("tiny_hybrid.yaml")
    del data["exclude"]
    data["matrix"] = {"task": list(tasks)}
    common = {"concurrency": 8, "warmup": 8, "canaries": 0, "limit": ASKED}
    data["tasks"] = {name: {**common, **task} for name, task in tasks.items()}
    data["cell"]["task"] = next(iter(tasks))
    data["cell"]["both"]["args"]["enable-prefix-caching"] = caching
    return data


def cells_of(run: Path, *labels: str) -> dict[Any, dict[str, Any]]:
    """Every result by these of its labels, behind whether a connector is named."""
    cells = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(run.glob("cells/*/cell.json"))]
    return {(c["labels"]["connector"] is not None, *(c["labels"][x] for x in labels)): c for c in cells}


def asked(run: Path, cell: dict[str, Any]) -> list[dict[str, Any]]:
    """The records of its questions' first asking."""
    found = rows(run, cell["cell_id"], "requests.jsonl")
    return [r for r in found if r["kind"] == "question" and r["repeat"] == 0]


def groups(cell: dict[str, Any]) -> dict[str, tuple[int, int]]:
    return {g["name"]: (g["correct"], g["scored"]) for g in cell["groups"]["groups"]}


def hit_rate(cell: dict[str, Any]) -> float:
    sources = cell["sources"]
    rate: float = (sources["cached"] + sources["loaded"]) / sum(sources.values())
    return rate


def test_workloads_of_a_hand_off(start_sweep: Start, tmp_path: Path) -> None:
    sums(tmp_path)
    sweep = start_sweep(config=written(demo(TASKS, caching=True), tmp_path))
    code, out, err = sweep.finish().told
    keep(sweep.run)
    assert code == 0, (out, err)
    cells = cells_of(sweep.run, "task")
    for name in TASKS:
        cell, whole = cells[True, name], cells[False, name]
        assert cell["verdict"]["state"] == "pass", (name, out)
        proof = cell["evidence"]
        assert (proof["pd_exercised"], proof["transfers"], proof["failed"], proof["expired"]) == (True, ASKED, 0, 0)
        records = asked(sweep.run, cell)
        prompt = sum(r["prompt_tokens"] for r in records)
        # Of a model with state prefill computes all but the last token, which decode computes (vLLM 0.32, NIXL).
        for each, left in ((cell, ASKED), (whole, 0)):
            rate, output = each["throughput"]["total_tokens_per_s"], each["throughput"]["total_output_tokens"]
            assert rate == pytest.approx((prompt + output) / each["throughput"]["duration_s"])
            assert sum(each["sources"].values()) == prompt - left
        assert len({r["text"] for r in records}) > 10, "prompts that are answered alike prove nothing"

    # The first prompt of all computes the shared words, the others hit their whole blocks.
    tokens = asked(sweep.run, cells[True, "shared"])[0]["prompt_tokens"]
    blocks = SHARED * tokens // BLOCK * BLOCK / tokens
    for pd in (True, False):
        assert hit_rate(cells[pd, "unshared"]) < 0.02
        assert blocks - 0.12 < hit_rate(cells[pd, "shared"]) < blocks + 0.06
    assert "cache hits" in out and "total tokens/s" in out

    for pd in (True, False):
        needles = groups(cells[pd, "needles"])
        assert (
            list(needles) == ["0 %", "25 %", "50 %", "75 %", "100 %"] and sum(n for _, n in needles.values()) == ASKED
        )
        assert all(correct >= 0.95 * n for correct, n in needles.values()), needles
        assert cells[pd, "sums"]["accuracy"]["value"] >= 0.93
    task = cells[True, "sums"]["task"]
    assert (task["name"], task["version"], task["scorer"], task["n"]) == ("sums", "1", "robust", ASKED)
    at_the_edge(sweep.run, cells, BLOCK, least=0.93)


def at_the_edge(run: Path, cells: dict[Any, dict[str, Any]], block: int, least: float) -> None:
    """Prompts end where the engine's own count of tokens says, beside an edge of its own blocks, on both sides."""
    for pd in (True, False):
        cell = cells[pd, "edges"]
        assert cell["block_size"] == block
        records = asked(run, cell)
        ends = {int(r["sample_id"][-4:]): r["prompt_tokens"] % block for r in records}
        assert len(ends) == ASKED and all(end == (block - 1, 0, 1)[i % 3] for i, end in ends.items())
        offsets = groups(cell)
        assert {name: n for name, (_, n) in offsets.items()} == {"-1": 54, "0": 53, "+1": 53}
        assert all(correct >= least * n for correct, n in offsets.values()), offsets
    prompts = [{r["sample_id"]: r["prompt_sha256"] for r in asked(run, cells[pd, "edges"])} for pd in (True, False)]
    assert prompts[0] == prompts[1]


def test_edges_without_prefix_caching(start_sweep: Start, tmp_path: Path) -> None:
    """Every block is computed and moved; the tiny model's are as large as with it."""
    sweep = start_sweep(config=written(demo({"edges": {**TASKS["edges"], "multiples": 1}}, caching=False), tmp_path))
    code, out, err = sweep.finish().told
    keep(sweep.run)
    assert code == 0, (out, err)
    cells = cells_of(sweep.run, "task")
    at_the_edge(sweep.run, cells, BLOCK, least=0.93)
    assert all(cells[pd, "edges"]["sources"]["cached"] == 0 for pd in (True, False))


POOL = 64
"""Blocks of the GPU's pool: those of a dozen prompts."""
OFFLOADING = {
    "kv_connector": "OffloadingConnector",
    "kv_role": "kv_both",
    "kv_connector_extra_config": {
        "spec_name": "PlainStorage",
        "spec_module_path": "pdrig_faults.storage",
        "cpu_bytes_to_use": 2**30,
    },
}


def passes(pool: int, control: Path | None = None) -> dict[str, Any]:
    """One server whose blocks overflow into a storage, asked the same needles twice, cold and again."""
    tasks = {"needles": {**TASKS["needles"], "passes": 2, "concurrency": 4}}
    data = demo(tasks, caching=True)
    cell = data["cell"]
    cell["kv_transfer_config"] = OFFLOADING
    cell["prefill"] = {"instances": 0}
    cell["both"]["args"]["num-gpu-blocks-override"] = pool
    if control is not None:
        cell["both"]["env"][ENVIRONMENT] = str(control)
    data["baseline"] = ["monolithic", {"cell": {"pass": 1}}]
    return {**data, "noise_floor": False, "rerun": False}


@pytest.mark.usefixtures("plugin")
def test_a_second_pass_loads_what_the_first_has_stored(start_sweep: Start, tmp_path: Path) -> None:
    sweep = start_sweep(config=written(passes(POOL), tmp_path))
    code, out, err = sweep.finish().told
    keep(sweep.run)
    assert code == 0, (out, err)
    cells = cells_of(sweep.run, "pass")
    cold, reuse = cells[True, 1], cells[True, 2]
    assert (cold["verdict"]["state"], reuse["verdict"]["state"]) == ("pass", "pass")
    prompt = sum(r["prompt_tokens"] for r in asked(sweep.run, reuse))
    assert all(sum(cell["sources"].values()) == prompt for cell in cells.values())
    assert cold["sources"]["loaded"] == 0
    # Four or five whole blocks of about 600 tokens.
    assert reuse["sources"]["loaded"] > 0.7 * prompt
    assert cells[False, 2]["sources"]["loaded"] == 0 and hit_rate(cells[False, 2]) < 0.1
    counters = reuse["evidence"]["counters"]["monolithic-0"]
    assert counters["vllm:prompt_tokens_by_source_total{external_kv_transfer}"] == reuse["sources"]["loaded"]
    held = {c["baseline"]: c["n"] for c in reuse["comparisons"]}
    assert held == {cells[False, 2]["cell_id"]: ASKED, cold["cell_id"]: ASKED}
    assert "A connector loaded" in out


@pytest.mark.usefixtures("plugin")
def test_damage_of_what_the_storage_gives_back_is_red_in_the_second_pass_alone(
    start_sweep: Start, tmp_path: Path
) -> None:
    control = tmp_path / "faults.json"
    Control((Fault("storage_swapped", 0.15, seed=1), Fault("storage_zeroed", 0.15, seed=2))).write(control)
    sweep = start_sweep(config=written(passes(POOL, control), tmp_path))
    code, out, err = sweep.finish().told
    keep(sweep.run)
    assert code == 1, (out, err)
    cells = cells_of(sweep.run, "pass")
    assert cells[True, 1]["verdict"]["state"] == "pass"
    assert cells[True, 2]["verdict"]["state"] == "regression"
    hits = read_hits(control)
    assert {hit.fault for hit in hits} == {"storage_swapped", "storage_zeroed"}
    assert all(hit.unix_time > cells[True, 2]["t0_unix"] for hit in hits)
    judged = rows(sweep.run, cells[True, 2]["cell_id"], "judged.jsonl")
    wrong = {j["sample_id"] for j in judged if j["outcome"] != "correct"}
    right_before = {
        j["sample_id"] for j in rows(sweep.run, cells[True, 1]["cell_id"], "judged.jsonl") if j["outcome"] == "correct"
    }
    struck = {hit.sample_id for hit in hits}
    assert wrong & right_before <= struck
    assert len(wrong & struck) > 0.5 * len(struck)


@pytest.mark.usefixtures("plugin")
def test_a_pool_that_holds_all_leaves_the_storage_untested(start_sweep: Start, tmp_path: Path) -> None:
    data = passes(4096)
    data["baseline"] = {"cell": {"pass": 1}}
    sweep = start_sweep(config=written(data, tmp_path))
    code, out, err = sweep.finish().told
    keep(sweep.run)
    assert code == 3, (out, err)
    cells = cells_of(sweep.run, "pass")
    reuse = cells[True, 2]
    assert (reuse["status"], reuse["verdict"]["state"]) == ("invalid", "invalid")
    assert "Pass 2 loaded nothing from the connector's storage" in reuse["verdict"]["reasons"][0]["text"]
    assert reuse["accuracy"]["value"] >= 0.95, "the answers are right, and prove nothing about the storage"
