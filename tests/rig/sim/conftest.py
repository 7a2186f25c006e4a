"""Simulated engines as real processes on loopback, for the tests of this folder."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from sim_sweeps import free_ports

PULL = {"kv_connector": "NixlConnector", "kv_role": "kv_both"}
ASK = "Question: Ann has 3 apples and buys 4 more. How many apples does Ann have now?\nAnswer:"
OTHER = "Question: Ben had 20 books and gave away 5. How many books are left?\nAnswer:"


@dataclass
class Sim:
    """One running server."""

    process: subprocess.Popen[bytes]
    port: int
    client: httpx.Client
    log: Path
    ledger_path: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def wait_until(self, true: Callable[[], bool], limit_s: float = 30) -> None:
        """Poll a condition; ends early when the process does."""
        for _ in range(int(limit_s / 0.02)):
            if true():
                return
            try:
                self.process.wait(0.02)
            except subprocess.TimeoutExpired:
                continue
            if true():
                return
            raise AssertionError(f"the engine ended with {self.process.returncode}:\n{self.log.read_text()}")
        raise AssertionError(f"not within {limit_s} s:\n{self.log.read_text()}")

    def healthy(self) -> bool:
        try:
            return self.client.get("/health").status_code == 200
        except httpx.TransportError:
            return False

    def complete(self, prompt: Any = ASK, **more: Any) -> httpx.Response:
        headers = more.pop("headers", None)
        return self.client.post("/v1/completions", json={"prompt": prompt, "max_tokens": 64, **more}, headers=headers)

    def prefill(self, prompt: str = ASK, **more: Any) -> Any:
        """The prefill leg by hand; its kv_transfer_params."""
        params = {"do_remote_decode": True, "do_remote_prefill": False, "remote_engine_id": None}
        answer = self.complete(prompt, **{"max_tokens": 1, "kv_transfer_params": params, **more})
        assert answer.status_code == 200, answer.text
        return answer.json()["kv_transfer_params"]

    def text(self, prompt: Any = ASK, **more: Any) -> str:
        answer = self.complete(prompt, **more)
        assert answer.status_code == 200, answer.text
        return str(answer.json()["choices"][0]["text"])

    def ledger(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.ledger_path.read_text().splitlines()]

    def counter(self, name: str, label: str = "") -> float | None:
        """A sample of /metrics; None when the series is absent."""
        lines = self.client.get("/metrics").text.splitlines()
        found = [line for line in lines if line.startswith(f"{name}{{") and label in line]
        return sum(float(line.rpartition(" ")[2]) for line in found) if found else None


Start = Callable[..., Sim]


@pytest.fixture(scope="session")
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    """Starts servers; all of them are gone at the end."""
    started: list[Sim] = []

    def start_one(
        *argv: str,
        kv: dict[str, Any] | None = None,
        faults: list[dict[str, Any]] | None = None,
        settings: dict[str, Any] | None = None,
        wait: bool = True,
        side_port: int | None = None,
        control: Path | None = None,
        port: int | None = None,
    ) -> Sim:
        folder = tmp_path_factory.mktemp("sim")
        own, side = free_ports(2)
        port, log = port or own, folder / "log"
        words = [sys.executable, "-m", "rig.sim", "tiny", "--port", str(port), *argv]
        words += ["--kv-transfer-config", json.dumps(kv)] if kv else []
        env = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("PDRIG_", "VLLM_"))},
            "PDRIG_SIM_CONFIG": json.dumps(settings or {}),
            "PDRIG_SIM_FAULTS": json.dumps(faults or []),
            "PDRIG_SIM_LEDGER": str(folder / "ledger.jsonl"),
            "VLLM_NIXL_SIDE_CHANNEL_PORT": str(side_port or side),
            **({"PDRIG_FAULTS": str(control)} if control else {}),
        }
        with log.open("wb") as out:
            process = subprocess.Popen(words, env=env, stdout=out, stderr=subprocess.STDOUT)
        # A connection is given up before the server closes it, which it does after 5 s.
        kept = httpx.Limits(keepalive_expiry=2)
        client = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=20, limits=kept, trust_env=False)
        sim = Sim(process, port, client, log, folder / "ledger.jsonl")
        started.append(sim)
        if wait:
            sim.wait_until(sim.healthy)
        return sim

    yield start_one
    for sim in started:
        sim.client.close()
        if sim.process.poll() is None:
            sim.process.send_signal(signal.SIGKILL)
        sim.process.wait(10)


def tagged(*faults: dict[str, Any]) -> list[dict[str, Any]]:
    """Faults that each strike only prompts with their name (or tag) in square brackets."""
    made = []
    for fault in faults:
        tag = fault.pop("tag", fault["fault"])
        made.append({**fault, "when": {"prompt_contains": f"[{tag}]", **fault.get("when", {})}})
    return made


PREFILL_FAULTS = tagged(
    {"fault": "no_kv_params"},
    {"fault": "wrong_engine_id"},
    {"fault": "lease_expired"},
    {"fault": "wrong_answer", "tag": "p_wrong", "when": {"side": "prefill"}},
)
DECODE_FAULTS = tagged(
    {"fault": "wrong_answer"},
    {"fault": "wrong_answer", "tag": "three", "when": {"min_concurrency": 3}},
    {"fault": "wrong_answer", "tag": "block", "when": {"prompt_multiple_of": 16}},
    {"fault": "wrong_answer", "tag": "soon", "when": {"after_finish_within_ms": 1e6}},
    {"fault": "wrong_answer", "tag": "half", "rate": 0.5},
    {"fault": "wrong_answer", "tag": "flaky", "rate": 0.5, "by": "request"},
    {"fault": "wrong_answer", "tag": "moved", "when": {"transferred": True}},
    {"fault": "wrong_answer", "tag": "once", "limit": 1},
    {"fault": "swapped"},
    {"fault": "stale"},
    {"fault": "garbage"},
    {"fault": "endless"},
    {"fault": "no_number"},
    {"fault": "runs_on"},
    {"fault": "empty_text"},
    {"fault": "reasoning_only"},
    {"fault": "prompt_tokens_off", "params": {"by": 3}},
    {"fault": "ignore_kv_params"},
    {"fault": "transfer_failed"},
    {"fault": "transfer_garbage"},
    {"fault": "slow_transfer", "params": {"ms": 5}},
    {"fault": "error_status", "tag": "e400", "params": {"status": 400, "message": "no"}},
    {"fault": "error_status", "tag": "e503", "params": {"status": 503, "message": "busy"}},
    {"fault": "empty_200"},
    {"fault": "bad_json"},
    {"fault": "stream_error"},
    {"fault": "stream_cut"},
    {"fault": "stream_stall"},
    {"fault": "no_done"},
    {"fault": "headers_then_nothing"},
    {"fault": "hang"},
    {"fault": "reset"},
    {"fault": "slow_first_token", "params": {"ms": 5}},
    {"fault": "slow_tokens", "params": {"ms": 1}},
)


@pytest.fixture(scope="session")
def pair(start: Start) -> tuple[Sim, Sim]:
    """A prefill and a decode server; faults strike prompts that name them in square brackets."""
    # Of tickets that tests leave unused, no lease runs out while another test counts those that did.
    lasting = {**PULL, "kv_connector_extra_config": {"kv_lease_duration": 3600}}
    prefill = start("-tp", "2", "--max-model-len", "400", kv=lasting, faults=PREFILL_FAULTS, wait=False)
    decode = start("-tp", "2", "--max-model-len", "400", kv=PULL, faults=DECODE_FAULTS, wait=False)
    for sim in (prefill, decode):
        sim.wait_until(sim.healthy)
    return prefill, decode


@pytest.fixture
def prefill(pair: tuple[Sim, Sim]) -> Sim:
    return pair[0]


@pytest.fixture
def decode(pair: tuple[Sim, Sim]) -> Sim:
    return pair[1]


@pytest.fixture
def ask() -> str:
    """A prompt whose answer is 7."""
    return ASK


@pytest.fixture
def other() -> str:
    """A prompt whose answer is 15."""
    return OTHER


@pytest.fixture
def pull() -> dict[str, Any]:
    return dict(PULL)
