"""KV connectors on the CPU engine: what proves each hand-off, failed loads, and faults planted under each of them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tiny_models import LLAMA, hand_off_cells, keep, make_models, rows
from tiny_sweeps import shipped, written

from rig import series as c
from rig.faults.control import ENVIRONMENT, Control, Fault, When, read_hits

ROOT = Path(__file__).resolve().parents[2]
QUESTIONS = 160
"""Enough for a pass at a margin of 0.02 when no answer flips."""
LONG_PROMPT = 310
"""Tokens: about a quarter of the questions and half of the canaries are at least as long."""
PULL, PUSH = "NixlConnector", "NixlPushConnector"

pytestmark = [pytest.mark.real, pytest.mark.long, pytest.mark.timeout(3000), pytest.mark.usefixtures("plugin")]


def with_connector(data: dict[str, Any], connector: str, beside_offloading: bool) -> dict[str, Any]:
    """The sweep with a NIXL connector, alone or in a MultiConnector with an offload storage."""
    kv = data["cell"]["kv_transfer_config"]
    if not beside_offloading:
        kv["kv_connector"] = connector
        return data
    storage = {"spec_name": "PlainStorage", "spec_module_path": "pdrig_faults.storage", "cpu_bytes_to_use": 2**28}
    children = [
        {"kv_connector": connector, "kv_role": "kv_both", "kv_buffer_device": "cpu"},
        {"kv_connector": "OffloadingConnector", "kv_role": "kv_both", "kv_connector_extra_config": storage},
    ]
    kv |= {"kv_connector": "MultiConnector", "kv_connector_extra_config": {"connectors": children}}
    # A model with state refuses to start beside an OffloadingConnector without it.
    data["cell"]["both"]["args"]["enable-prefix-caching"] = True
    return data


def demo(connector: str = PULL, beside_offloading: bool = False, control: Path | None = None) -> dict[str, Any]:
    """The demo's sweep with one cell, fewer questions and another connector."""
    data = with_connector(shipped("tiny_hybrid.yaml"), connector, beside_offloading)
    del data["matrix"], data["exclude"]
    data["rerun"] = False
    data["tasks"]["gsm-tiny"]["limit"] = QUESTIONS
    if control is not None:
        data["cell"]["both"]["env"][ENVIRONMENT] = str(control)
    return data


def asked_of(run: Path, cell_id: str) -> list[dict[str, Any]]:
    """The records of questions and canaries; warm-up comes before the counters are read."""
    return [r for r in rows(run, cell_id, "requests.jsonl") if r["kind"] in ("question", "canary")]


def grown(cell: dict[str, Any], series: str) -> dict[str, float | None]:
    """What a series grew by, by instance."""
    return {instance: values[series] for instance, values in cell["evidence"]["counters"].items()}


Start = Callable[..., Any]
OFFLOADING = pytest.mark.parametrize("beside_offloading", [False, True], ids=["alone", "beside an offload storage"])
MODES = pytest.mark.parametrize("connector", [PULL, PUSH])


@OFFLOADING
@MODES
def test_nixl_is_proved_by_the_side_that_moves(
    start_sweep: Start, tmp_path: Path, connector: str, beside_offloading: bool
) -> None:
    sweep = start_sweep(config=written(demo(connector, beside_offloading), tmp_path))
    code, out, err = sweep.finish().told
    keep(sweep.run)
    (cell,) = hand_off_cells(sweep.run)
    assert cell["verdict"]["state"] == "pass", (out, err)
    assert code == 0
    moved = QUESTIONS + cell["evidence"]["canaries"]["sent"]
    assert cell["evidence"]["pd_exercised"] is True
    assert cell["evidence"]["transfers"] == moved
    assert cell["evidence"]["failed"] == cell["evidence"]["expired"] == 0
    counts = grown(cell, c.BYTES_COUNT)
    mover, other = ("prefill-0", "decode-0") if connector == PUSH else ("decode-0", "prefill-0")
    assert (counts[mover], counts[other]) == (moved, 0)
    if beside_offloading:
        stored = grown(cell, c.OFFLOAD_STORED)
        assert all(stored.values()), "the storage beside NIXL took nothing"


@pytest.fixture
def through_files(engine: Path, tmp_path: Path) -> dict[str, Any]:
    """A Llama whose blocks go through the example connector's files: hybrids do not start with it."""
    make_models(engine, tmp_path, {"llama": LLAMA})
    data = demo()
    data["models"] = {"llama": {"path": str(tmp_path / "llama"), "family": "attention"}}
    cell = data["cell"]
    cell |= {"model": "llama", "task": "words"}
    cell["kv_transfer_config"] = {
        "kv_connector": "ExampleConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"shared_storage_path": str(tmp_path / "files")},
    }
    del cell["both"]["args"]["disable-hybrid-kv-cache-manager"]
    # 0 of 40 outputs beyond the noise bound the true share below 8 %.
    words = {"task": "prefill-heavy", "words": 120, "limit": 40, "max_tokens": 12, "concurrency": 4, "warmup": 4}
    data["tasks"] = {"words": {**words, "canaries": 0, "divergence": "logprobs"}}
    data["gates"] = {"max_accuracy_drop": 0.1, "alpha": 0.05}
    return data


def test_files_are_proved_by_tokens_and_old_ones_prove_nothing(
    start_sweep: Start, tmp_path: Path, through_files: dict[str, Any]
) -> None:
    config = written(through_files, tmp_path)
    sweep = start_sweep(config=config)
    code, out, err = sweep.finish().told
    keep(sweep.run)
    (cell,) = hand_off_cells(sweep.run)
    assert cell["verdict"]["state"] == "pass", (out, err)
    assert code == 0
    assert cell["evidence"]["pd_exercised"] is True
    assert cell["evidence"]["transfers"] is None, "nothing counts them"
    asked = asked_of(sweep.run, cell["cell_id"])
    prompt = sum(r["prompt_tokens"] for r in asked)
    external = grown(cell, c.EXTERNAL_TOKENS)
    assert external["prefill-0"] == 0
    assert external["decode-0"] == cell["evidence"]["external_tokens"] >= 0.5 * prompt
    assert external["decode-0"] + cell["evidence"]["local_tokens"] == prompt
    assert len({r["text"] for r in asked}) > 4, "prompts that are answered alike prove nothing"

    again = start_sweep(config=config)
    code, out, err = again.finish().told
    (cell,) = hand_off_cells(again.run)
    assert code == 3, err
    assert cell["verdict"]["state"] == "invalid"
    (reason,) = cell["verdict"]["reasons"]
    assert "nothing shows that prefill wrote any of them; start with an empty folder" in reason["text"]


@MODES
def test_failed_loads_fail_or_are_computed_again_and_judged_like_all_others(
    start_sweep: Start, tmp_path: Path, connector: str
) -> None:
    control = tmp_path / "faults.json"
    Control((Fault("failed_handshake", 0.1, seed=1),)).write(control)
    data = demo(connector, control=control)
    data["matrix"] = {"kv_transfer_config.kv_load_failure_policy": ["fail", "recompute"]}
    sweep = start_sweep(config=written(data, tmp_path))
    code, out, err = sweep.finish().told
    assert code == 1, (out, err)
    cells = {cell["labels"]["kv_transfer_config.kv_load_failure_policy"]: cell for cell in hand_off_cells(sweep.run)}
    assert set(cells) == {"fail", "recompute"}
    struck = {hit.sample_id for hit in read_hits(control)}
    questions = {s for s in struck if s.startswith("gsm-tiny-")}
    assert len(questions) >= 5, "the planted fault did not fire"
    for policy, cell in cells.items():
        judged = {j["sample_id"]: j["outcome"] for j in rows(sweep.run, cell["cell_id"], "judged.jsonl")}
        judged = {s: o for s, o in judged.items() if s.startswith("gsm-tiny-")}
        assert len(judged) == QUESTIONS
        assert cell["verdict"]["state"] == "regression", out
        assert cell["evidence"]["pd_exercised"] is True, cell["evidence"]["findings"]
        assert cell["evidence"]["failed"] == len(struck)
        canaries = cell["evidence"]["canaries"]["sent"]
        assert cell["evidence"]["transfers"] == QUESTIONS + canaries - len(struck)
        failed = {s for s, o in judged.items() if o == "error"}
        if policy == "fail":
            assert set(cell["verdict"]["alarms"]) == {"errors", "transfer"}
            assert failed == questions
        else:
            assert cell["verdict"]["alarms"] == ["transfer"], "they are right, but loads should not fail"
            assert not failed
            (pairs,) = (sweep.run / "cells" / cell["cell_id"]).glob("pairs.*.jsonl")
            held = {p["sample_id"]: p for p in rows(sweep.run, cell["cell_id"], pairs.name)}
            assert all(held[s]["outcome"] == judged[s] for s in questions), "an answer computed again was left out"
            assert sum(judged[s] == "correct" for s in questions) >= len(questions) - 1
            assert cell["task"]["n"] == QUESTIONS == sum(cell["counts"][k] for k in ("correct", "wrong", "unparsed"))


@OFFLOADING
@MODES
def test_a_fault_is_red_with_its_channel_and_segment(
    start_sweep: Start, tmp_path: Path, connector: str, beside_offloading: bool
) -> None:
    control = tmp_path / "faults.json"
    fault = Fault("late_zeroing", 1.0, when=When(min_prompt_tokens=LONG_PROMPT))
    # Of the second nothing can come under push; it is for the engine to say so.
    asked = (fault, Fault("stale_blocks", 1.0, samples=())) if connector == PUSH else (fault,)
    Control(asked).write(control)
    sweep = start_sweep(config=written(demo(connector, beside_offloading, control), tmp_path))
    code, out, err = sweep.finish().told
    assert code == 1, (out, err)
    (cell,) = hand_off_cells(sweep.run)
    hits = read_hits(control)
    struck = {hit.sample_id for hit in hits}
    assert {hit.fault for hit in hits} == {"late_zeroing"}
    requests = asked_of(sweep.run, cell["cell_id"])
    assert struck == {r["sample_id"] for r in requests if (r["prompt_tokens"] or 0) >= LONG_PROMPT}
    assert len(struck) > 20, "the planted fault hardly fired"
    assert cell["evidence"]["pd_exercised"] is True, "no counter sees damage after the transfer"
    assert cell["verdict"]["state"] == "regression"
    assert "damage" in cell["verdict"]["alarms"]
    assert cell["evidence"]["canaries"]["wrong"] >= 3
    (comparison,) = cell["comparisons"]
    assert any(segment["axis"] == "prompt_tokens" for segment in comparison["where"]), comparison["where"]
    (log,) = sweep.run.glob("deployments/*1p1d*/logs/decode-0.log")
    refused = "stale_blocks is not planted: under NixlPushConnector"
    assert log.read_text(errors="replace").count(refused) == (connector == PUSH)


@pytest.fixture
def selftest(engine: Path, tmp_path: Path) -> Iterator[Callable[[dict[str, Any]], tuple[str, str, Path]]]:
    started: list[subprocess.Popen[str]] = []

    def run(data: dict[str, Any]) -> tuple[str, str, Path]:
        """Stdout, stderr and the run of a short self-test on this deployment."""
        options = [
            "--engine",
            "real",
            "--short",
            "--config",
            str(written(data, tmp_path)),
            "--out",
            str(tmp_path / "r"),
        ]
        started.append(
            subprocess.Popen(
                [sys.executable, "-m", "rig", "selftest", *options],
                cwd=ROOT,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                stdin=subprocess.DEVNULL,
                text=True,
            )
        )
        out, err = started[-1].communicate()
        (folder,) = (tmp_path / "r").iterdir()
        return out, err, folder

    yield run
    for process in started:
        if process.poll() is None:
            process.terminate()
            process.wait()


@pytest.mark.parametrize(
    ("connector", "beside_offloading"),
    [(PUSH, False), (PULL, True)],
    ids=["push", "a MultiConnector"],
)
def test_the_self_test_catches_every_fault_that_the_connector_can_have(
    selftest: Callable[[dict[str, Any]], tuple[str, str, Path]], connector: str, beside_offloading: bool
) -> None:
    out, err, run = selftest(with_connector(shipped("selftest.yaml"), connector, beside_offloading))
    planted = 10 if connector == PULL else 9
    assert f"{planted} of {planted} planted faults caught; of 2 clean runs 0 alarmed and 2 passed" in out, (out, err)
    assert ("stale_blocks is not planted: under NixlPushConnector" in err) is (connector == PUSH)
    for folder in (run / "cells").iterdir():
        cell = json.loads((folder / "cell.json").read_text(encoding="utf-8"))
        if cell["labels"].get("fault") is not None:
            (hits,) = folder.glob("hits*.jsonl")
            fired = {json.loads(line)["fault"] for line in hits.read_text(encoding="utf-8").splitlines()}
            assert fired == {cell["labels"]["fault"]}, folder.name
