"""Whether a foreign router hands over, by the counters of servers that do and do not move KV."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from rig import series
from rig.deploy import counted, ready
from rig.deploy.startup import router_env
from rig.errors import NotUsable
from rig.planned import AttachedServer, DeploymentPlan, ProxyPlan
from rig.records import Role
from rig.series import Reading

URL = "http://router"


def completion() -> dict[str, Any]:
    top = {" ok": -0.1, " a": -3.0}
    logprobs = {"tokens": [" ok"], "token_logprobs": [-0.1], "top_logprobs": [top]}
    return {"choices": [{"text": " ok", "logprobs": logprobs}]}


class Servers:
    """Counts as the engines behind a router would; `moves` says whether request number n is handed over."""

    def __init__(self, moves: Callable[[int], bool] = lambda n: True, side: Role = "decode", late: int = 0) -> None:
        self.moves = moves
        self.side = side
        self.late = late
        self.prompts: list[str] = []
        self.reads = 0
        self.lacking: str | None = None
        self.missing: str | None = None

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.prompts.append(json.loads(request.content)["prompt"])
        return httpx.Response(200, json=completion())

    async def read(self, sources: list[Any]) -> tuple[Reading, ...]:
        self.reads += 1
        moved = 7 + sum(self.moves(n) for n in range(len(self.prompts)))
        moved = 7 if self.reads <= 1 + self.late else moved
        computed = 9.0 * sum(not self.moves(n) for n in range(len(self.prompts)))
        found = []
        for source in sources:
            values: dict[str, float | None] = dict.fromkeys(series.WATCHED, 0.0)
            values[series.LOCAL_TOKENS] = computed if source.role == "decode" else 100.0
            first = source.instance.endswith("-0")
            values[series.BYTES_COUNT] = float(moved) if source.role == self.side and first else 0.0
            if self.lacking is not None:
                values[self.lacking] = None
            found.append(Reading(source.instance, source.role, values, self.missing if self.reads > 1 else None))
        return tuple(found)


def plan(prefills: int, decodes: int, connector: str | None = "NixlConnector") -> DeploymentPlan:
    def server(role: Role, i: int) -> AttachedServer:
        return AttachedServer(f"{role}-{i}", role, f"http://{role}-{i}", "tiny", f"http://{role}-{i}/metrics")

    servers = [server("prefill", i) for i in range(prefills)] + [server("decode", i) for i in range(decodes)]
    return DeploymentPlan("d", "pd", "attach", "tiny", connector, attached=tuple(servers))


async def check(servers: Servers, monkeypatch: pytest.MonkeyPatch, deployment: DeploymentPlan) -> None:
    monkeypatch.setattr(counted, "read_settled", servers.read)
    monkeypatch.setattr(ready, "POLL_FIRST_S", 0.0)
    async with httpx.AsyncClient(transport=httpx.MockTransport(servers)) as http:
        await counted.check_counted(http, URL, deployment, limit_s=60)


@pytest.mark.parametrize(("prefills", "decodes", "asked"), [(1, 1, 1), (2, 3, 6), (10, 10, ready.MAX_PAIRS)])
@pytest.mark.parametrize(("connector", "side"), [("NixlConnector", "decode"), ("NixlPushConnector", "prefill")])
async def test_hand_offs_that_are_counted(
    monkeypatch: pytest.MonkeyPatch, prefills: int, decodes: int, asked: int, connector: str, side: Role
) -> None:
    servers = Servers(side=side)
    await check(servers, monkeypatch, plan(prefills, decodes, connector))
    assert len(servers.prompts) == asked == len(set(servers.prompts)), "no prompt that a cache could hold"


async def test_an_engine_may_count_a_little_later(monkeypatch: pytest.MonkeyPatch) -> None:
    servers = Servers(late=3)
    await check(servers, monkeypatch, plan(1, 1))
    assert servers.reads == 5


FAULTS: list[tuple[Servers, str]] = [
    (
        Servers(lambda n: False),
        r"the router at http://router answered 2 requests, but no hand-off took place: decode counted 0 transfers "
        r"\(vllm:nixl_bytes_transferred_count\), and decode computed 36 prompt tokens itself; check that it routes",
    ),
    (Servers(lambda n: n == 0), "answered 2 requests, but only 1 hand-off took place: decode counted 1 transfers"),
    (Servers(side="prefill"), "no hand-off took place: decode counted 0"),
]


@pytest.mark.parametrize(("servers", "told"), FAULTS, ids=["never", "once", "on the other side"])
async def test_a_router_that_hands_over_too_little(
    monkeypatch: pytest.MonkeyPatch, servers: Servers, told: str
) -> None:
    monkeypatch.setattr(counted, "COUNTED_S", 0.0)
    with pytest.raises(NotUsable, match=told):
        await check(servers, monkeypatch, plan(1, 2))


async def test_what_cannot_be_read_proves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    servers = Servers()
    servers.lacking = series.BYTES_COUNT
    with pytest.raises(NotUsable, match="no hand-off can be proved: a decode server lacks vllm:nixl_bytes_tran"):
        await check(servers, monkeypatch, plan(1, 1))
    servers = Servers()
    servers.missing = "ConnectError"
    with pytest.raises(ready.NoAnswer, match=r"prefill-0: counters could not be read \(ConnectError\)"):
        await check(servers, monkeypatch, plan(1, 1))


async def test_of_a_connector_without_a_rule_only_the_answer_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The evidence says that nothing proves the hand-off; answers without tokens are refused here all the same."""
    await check(Servers(lambda n: False), monkeypatch, plan(1, 1, "LMCacheConnectorV1"))

    class Useless(Servers):
        def __call__(self, request: httpx.Request) -> httpx.Response:
            return httpx.Response(200, json={"choices": []})

    with pytest.raises(NotUsable, match="what the router at http://router answers is useless"):
        await check(Useless(), monkeypatch, plan(1, 1, "LMCacheConnectorV1"))


def test_the_key_of_the_engines_reaches_vllm_router_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-somebody-else")
    monkeypatch.setenv("VLLM_API_KEY", "sk-shell")

    def key(kind: Any, server: dict[str, str], **env: str) -> str | None:
        return router_env(ProxyPlan(("r",), 1, URL, kind=kind, env=env), server).get("OPENAI_API_KEY")

    assert key("vllm-router", {"VLLM_API_KEY": "sk-engine"}) == "sk-engine"
    assert key("vllm-router", {}) == "sk-shell"
    assert key("vllm-router", {}, OPENAI_API_KEY="sk-chosen") == "sk-chosen"
    assert key("command", {"VLLM_API_KEY": "sk-engine"}) == "sk-of-somebody-else"
    monkeypatch.delenv("VLLM_API_KEY")
    assert router_env(ProxyPlan(("r",), 1, URL, env={"A": "1"}), {}) == {**os.environ, "A": "1"}
