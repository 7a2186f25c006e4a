"""The control file of real engines, obeyed by the simulated one: whom it strikes, what comes back, what is written."""

from __future__ import annotations

import contextlib
import re
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from evals.canaries import Canary, check, make_canaries
from rig.faults.control import ENVIRONMENT, FAULTS, Control, Fault, Hit, When, hits_path, read_hits
from rig.sim import faults
from rig.sim.control import KINDS, Controlled

PULL = {"kv_connector": "NixlConnector", "kv_role": "kv_both"}
SLOW_STREAMS = [{"fault": "slow_tokens", "params": {"ms": 60000}, "when": {"stream": True}}]
DAMAGE = sorted(KINDS.keys() - {"recompute_unwritten"})


def request_id(sample_id: str) -> str:
    """An id as evaluator and proxy make it."""
    return f"{sample_id}-{uuid.uuid4().hex[:16]}-{uuid.uuid4().hex}"


def controlled(path: Path, *, recompute: bool = False) -> Controlled:
    return Controlled({ENVIRONMENT: str(path)}, recompute)


@dataclass
class Pd:
    """A prefill and a decode server under one control file, and a monolithic one that is given it too."""

    prefill: Any
    decode: Any
    alone: Any
    control: Path

    def plant(self, *planted: Fault) -> None:
        """What is planted from now on, and no strikes so far."""
        hits_path(self.control).unlink(missing_ok=True)
        Control(planted).write(self.control)

    def ask(self, prompt: str, sample_id: str, **more: Any) -> httpx.Response:
        """Both legs; decode's answer."""
        headers = {"X-Request-Id": request_id(sample_id)}
        ticket = self.prefill.prefill(prompt, headers=headers)
        answer: httpx.Response = self.decode.complete(prompt, kv_transfer_params=ticket, headers=headers, **more)
        return answer

    def text(self, prompt: str, sample_id: str) -> str:
        answer = self.ask(prompt, sample_id)
        assert answer.status_code == 200, answer.text
        return str(answer.json()["choices"][0]["text"])

    @contextlib.contextmanager
    def in_flight(self, prompt: str, sample_id: str) -> Iterator[None]:
        """Within it, decode is at work on a request."""
        headers = {"X-Request-Id": request_id(sample_id)}
        running = self.decode.counter("vllm:num_requests_running")
        body = {"prompt": prompt, "max_tokens": 48, "stream": True, "kv_transfer_params": self.prefill.prefill(prompt)}
        with (
            httpx.Client(base_url=self.decode.url, timeout=20) as client,
            client.stream("POST", "/v1/completions", json=body, headers=headers),
        ):
            yield
        self.decode.wait_until(lambda: self.decode.counter("vllm:num_requests_running") == running)

    def hits(self) -> list[Hit]:
        return read_hits(self.control)


@pytest.fixture(scope="module")
def pd(start: Any, tmp_path_factory: pytest.TempPathFactory) -> Pd:
    path = tmp_path_factory.mktemp("control") / "faults.json"
    Control().write(path)
    prefill = start(kv=PULL, control=path, wait=False)
    decode = start(kv=PULL, control=path, faults=SLOW_STREAMS, wait=False)
    alone = start(control=path, wait=False)
    for sim in (prefill, decode, alone):
        sim.wait_until(sim.healthy)
    return Pd(prefill, decode, alone, path)


@pytest.fixture(params=["gsm-tiny", "gsm8k"])
def canaries(request: pytest.FixtureRequest) -> list[Canary]:
    return make_canaries(request.param, 6, f"cell {uuid.uuid4()}", {"max_tokens": 96}, "completions")


def others(canaries: Sequence[Canary]) -> dict[str, str]:
    return {canary.code: canary.sample.sample_id for canary in canaries}


def test_every_fault_of_the_control_file_has_its_like() -> None:
    assert KINDS.keys() | {"slow_transfer", "failed_handshake"} == FAULTS.keys()
    assert set(KINDS.values()) <= faults.REQUEST_FAULTS.keys()


def test_whom_the_file_strikes(tmp_path: Path) -> None:
    path = tmp_path / "faults.json"
    both = Fault("late_zeroing", samples=("a-1",)), Fault("slow_transfer", rate=1.0, when=When(min_concurrency=2))
    Control((*both, Fault("slow_transfer", rate=1.0, params={"ms": 5}))).write(path)
    here = controlled(path)
    assert set(here.striking(request_id("a-1"), 2, 10)) == {"late_zeroing", "slow_transfer"}
    assert here.striking(request_id("a-2"), 2, 10)["slow_transfer"].ms == 1000, "the first that strikes"
    assert here.striking(request_id("a-2"), 1, 10)["slow_transfer"].ms == 5
    assert not here.striking(request_id("warmup-0"), 2, 10)
    assert not here.striking("cmpl-somebody-elses-0-0a1b2c3d", 2, 10), "not named by the rig"
    assert not Controlled({}, recompute=False).striking(request_id("a-1"), 2, 10)


def test_unwritten_blocks_only_where_loads_are_recomputed(tmp_path: Path) -> None:
    path = tmp_path / "faults.json"
    Control((Fault("recompute_unwritten", rate=1.0),)).write(path)
    assert not controlled(path).striking(request_id("a"), 1, 10)
    assert set(controlled(path, recompute=True).striking(request_id("a"), 1, 10)) == {"recompute_unwritten"}


def test_a_file_that_is_missing_or_broken_plants_nothing_and_the_log_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "faults.json"
    here = controlled(path)
    assert not here.striking(request_id("a"), 1, 10) and "cannot be read" in capsys.readouterr().out
    path.write_text("{")
    assert not here.striking(request_id("a"), 1, 10) and "is not a control file" in capsys.readouterr().out
    Control((Fault("late_zeroing", rate=1.0),)).write(path)
    assert here.striking(request_id("a"), 1, 10)


@pytest.mark.parametrize("fault", DAMAGE)
def test_damage_is_planted_while_the_engine_runs(pd: Pd, canaries: list[Canary], fault: str) -> None:
    first, struck, spared = canaries[:3]
    pd.plant()
    assert check(first, pd.text(first.sample.prompt, "canary-0000"), {})[0] == "right"
    pd.plant(Fault(fault, samples=("canary-0001",)))
    asked = {"logprobs": 1, "return_token_ids": True, **struck.params}
    damaged = pd.ask(struck.sample.prompt, "canary-0001", **asked).json()["choices"][0]
    clean = pd.alone.complete(
        struck.sample.prompt, headers={"X-Request-Id": request_id("canary-0001")}, **asked
    ).json()["choices"][0]
    assert check(spared, pd.text(spared.sample.prompt, "canary-0002"), {})[0] == "right"

    verdict, _, whose = check(struck, damaged["text"], others(canaries))
    crossed = fault in ("blocks_swapped", "stale_blocks")
    assert (verdict, whose) == (("crossed", "canary-0000") if crossed else ("wrong", None))
    assert check(struck, clean["text"], {})[0] == "right", "a monolithic server is never struck"
    at = next(i for i, (a, b) in enumerate(zip(damaged["token_ids"], clean["token_ids"], strict=False)) if a != b)
    lower = damaged["logprobs"]["token_logprobs"][at] - clean["logprobs"]["token_logprobs"][at]
    assert lower < -1.4

    (hit,) = pd.hits()
    assert (hit.fault, hit.sample_id, hit.pid) == (fault, "canary-0001", pd.decode.process.pid)
    line = next(row for row in pd.decode.ledger() if row["engine_request_id"] == hit.request_id)
    assert (line["faults"], line["right"]) == ([fault], False)
    donor = hit.detail.get("donor", "")
    assert donor.startswith("cmpl-canary-0000-") if crossed else not hit.detail


def test_swapped_blocks_are_those_of_a_canary_in_flight(pd: Pd, canaries: list[Canary], other: str) -> None:
    ended, flying, struck = canaries[:3]
    pd.plant(Fault("blocks_swapped", samples=("canary-0002",)))
    pd.text(ended.sample.prompt, "canary-0000")
    with pd.in_flight(other, "gsm-1"), pd.in_flight(flying.sample.prompt, "canary-0001"):
        text = pd.text(struck.sample.prompt, "canary-0002")
    assert check(struck, text, others(canaries)) == ("crossed", flying.code, "canary-0001")
    with pd.in_flight(other, "gsm-1"):
        text = pd.text(struck.sample.prompt, "canary-0002")
    assert check(struck, text, others(canaries))[0] == "crossed", "the last one finished, not another kind in flight"


def test_only_what_was_received_is_struck(pd: Pd, ask: str) -> None:
    pd.plant(*(Fault(name, rate=1.0) for name in FAULTS))
    headers = {"X-Request-Id": request_id("gsm-1")}
    for sim in (pd.alone, pd.decode):
        assert re.search("#### 7$", sim.text(ask, headers=headers))
    pd.prefill.prefill(ask, headers=headers)
    assert not pd.hits()


def test_slow_transfers_are_late_and_right(pd: Pd, ask: str) -> None:
    pd.plant(Fault("slow_transfer", rate=1.0, params={"ms": 3}))
    assert re.search("#### 7$", pd.text(ask, "gsm-1"))
    assert [(hit.fault, hit.detail) for hit in pd.hits()] == [("slow_transfer", {"ms": 3})]


def test_a_failed_handshake_is_counted_and_answered_500(pd: Pd, ask: str) -> None:
    failed = pd.decode.counter("vllm:nixl_num_failed_transfers_total")
    pd.plant(Fault("failed_handshake", samples=("gsm-1",)), Fault("late_zeroing", rate=1.0))
    assert pd.ask(ask, "gsm-1").status_code == 500
    assert pd.decode.counter("vllm:nixl_num_failed_transfers_total") == failed + 1
    assert [hit.fault for hit in pd.hits()] == ["failed_handshake"], "what never came was not zeroed"


def test_failed_loads_under_recompute(start: Any, pd: Pd, ask: str) -> None:
    decode = start(kv={**PULL, "kv_load_failure_policy": "recompute"}, control=pd.control)
    there = Pd(pd.prefill, decode, pd.alone, pd.control)
    pd.plant(Fault("failed_handshake", samples=("gsm-1",)), Fault("recompute_unwritten", samples=("gsm-2",)))
    assert re.search("#### 7$", there.text(ask, "gsm-1"))
    assert not re.search("#### 7$", there.text(ask, "gsm-2"))
    assert decode.counter("vllm:nixl_num_failed_transfers_total") == 2
    assert [hit.fault for hit in pd.hits()] == ["failed_handshake", "recompute_unwritten"]


def test_what_cannot_exist_under_push_is_refused_and_the_rest_strikes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "faults.json"
    Control((Fault("stale_blocks", rate=1.0), Fault("late_zeroing", rate=1.0))).write(path)
    pushed = Controlled({ENVIRONMENT: str(path)}, recompute=False, push=True)
    assert set(pushed.striking(request_id("a"), 1, 10)) == {"late_zeroing"}
    said = capsys.readouterr()
    assert (said.out + said.err).count("stale_blocks is not planted: under NixlPushConnector") == 1
    assert set(controlled(path).striking(request_id("a"), 1, 10)) == {"stale_blocks", "late_zeroing"}
