"""Cases 10, 14, 15, 17 to 20 and 24, on one deployment that the rig's own launcher brought up: what a client sees."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

import aiohttp
import pytest
import pytest_asyncio
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from evals.client import Request, Target, Timeouts, send
from evals.records import RequestRecord
from evals.session import Session
from proxy.errors import ErrorClass
from rig.deploy import Deployment, launch

pytestmark = pytest.mark.asyncio(loop_scope="module")

QUESTION = "Question: Ann has 3 apples and buys 4 more. How many apples does Ann have now?\nAnswer:"
MODEL = "sim-tiny"
KEY = {"Authorization": "Bearer None"}
"""The engines' key is the word None, so that a proxy which makes a header of a missing one is let in."""
LEASE_S = 6
DEADLINE_S = 3.0
"""Long enough for whatever is sound, also where the machine is busy, and waited for where something is not."""
SLOW_MS = 2000
PATIENCE_S = 120
"""How long anything is waited for that must come."""

FAULTS: dict[str, dict[str, Any]] = {
    "d400": {"fault": "error_status", "params": {"status": 400, "message": "decode says no"}},
    "p429": {"fault": "error_status", "params": {"status": 429, "message": "slow down"}, "when": {"side": "prefill"}},
    "empty": {"fault": "empty_200", "when": {"side": "decode"}},
    "json": {"fault": "bad_json"},
    "error": {"fault": "stream_error"},
    "cut": {"fault": "stream_cut"},
    "reset": {"fault": "reset"},
    "headers": {"fault": "headers_then_nothing"},
    "stall": {"fault": "stream_stall"},
    "hang": {"fault": "hang"},
    "slow": {"fault": "slow_first_token", "params": {"ms": SLOW_MS}},
    "hidden": {"fault": "reasoning_only"},
    "params": {"fault": "no_kv_params"},
    "engine": {"fault": "wrong_engine_id"},
}
"""Each strikes prompts that hold its name in square brackets; on decode where nothing else is said."""


@dataclass
class Live:
    """A deployment that is up, its engines' ledger, a client, and the evaluator's own connections."""

    deployment: Deployment
    ledger_path: Path
    client: aiohttp.ClientSession
    session: Session

    @property
    def url(self) -> str:
        return self.deployment.url

    def engine(self, role: str) -> str:
        return next(server.url for server in self.deployment.servers if server.role == role)

    def ledger(self, request_id: str, side: str) -> list[dict[str, Any]]:
        """What an engine did to a client's request."""
        lines = [json.loads(line) for line in self.ledger_path.read_text().splitlines()]
        return [x for x in lines if (x["request_id"] or "").startswith(f"{request_id}-") and x["side"] == side]

    async def legs(self, request_id: str) -> list[dict[str, Any]]:
        await self.deployment.flush_legs()
        assert self.deployment.legs
        lines = [json.loads(line) for line in self.deployment.legs.read_text().splitlines()]
        return [line for line in lines if line["request_id"] == request_id]

    async def evaluate(self, tag: str, *, stream: bool = True, chat: bool = False) -> RequestRecord:
        """The evaluator's record of one request that a fault strikes."""
        endpoint: Any = "chat" if chat else "completions"
        target = Target(self.url, MODEL, KEY, endpoint, default_leg="proxy")
        request = Request("q", f"[{tag}] {QUESTION}", {"max_tokens": 40})
        now = asyncio.get_running_loop().time()
        return await send(self.session, target, request, t0=now, stream=stream, timeouts=Timeouts())

    def post(self, request_id: str, path: str = "/v1/completions", **body: Any) -> Any:
        headers = {**KEY, "X-Request-Id": request_id}
        body = {"model": MODEL, **({} if "messages" in body else {"prompt": QUESTION}), **body}
        return self.client.post(self.url + path, json=body, headers=headers)

    async def counter(self, role: str, name: str) -> float:
        """An engine's counter or gauge as it is now."""
        async with self.client.get(f"{self.engine(role)}/metrics") as answer:
            lines = (await answer.text()).splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"{name}{{"))


@contextlib.asynccontextmanager
async def live(kit: Any, folder: Path, sweep: dict[str, Any], *options: str) -> AsyncIterator[Live]:
    """Brings a sweep's P/D deployment up; `options` are more options of its proxy."""
    ledger = folder / "ledger.jsonl"
    sweep["engines"]["sim"]["env"]["PDRIG_SIM_LEDGER"] = str(ledger)
    plan = next(d for d in kit.planned(sweep, folder).deployments if d.kind == "pd")
    plan = replace(plan, proxy=replace(plan.proxy, argv=(*plan.proxy.argv, *options)))
    deployment = await launch(plan, folder / "deployment", lambda event: None)
    try:
        once = aiohttp.TCPConnector(force_close=True)
        async with aiohttp.ClientSession(connector=once) as client, Session() as session:
            yield Live(deployment, ledger, client, session)
    finally:
        assert not await deployment.stop()


def faulty(kit: Any, lease_s: int) -> dict[str, Any]:
    """A sweep of engines with a key that refuse ids in flight, and that break what they are asked to break."""
    sweep: dict[str, Any] = kit.template(sim={"reject_duplicate_ids": True})
    faults = []
    for tag, fault in FAULTS.items():
        sides = {} if fault["fault"] in ("no_kv_params", "wrong_engine_id") else {"side": "decode"}
        faults.append({**fault, "when": {**sides, **fault.get("when", {}), "prompt_contains": f"[{tag}]"}})
    sweep["cell"]["both"]["env"]["PDRIG_SIM_FAULTS"] = json.dumps(faults)
    sweep["cell"]["both"]["args"]["reasoning-parser"] = "qwen3"
    sweep["cell"]["kv_transfer_config"]["kv_connector_extra_config"] = {"kv_lease_duration": lease_s}
    sweep["engines"]["sim"]["env"]["VLLM_API_KEY"] = "None"
    return sweep


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def pd(kit: Any, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Live]:
    """Short leases, and no deadline that a busy machine could break."""
    async with live(kit, tmp_path_factory.mktemp("pd"), faulty(kit, LEASE_S)) as deployment:
        yield deployment


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def hasty(kit: Any, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Live]:
    """A proxy with short deadlines."""
    limits = ("--first-byte-timeout", str(DEADLINE_S), "--idle-timeout", str(DEADLINE_S))
    async with live(kit, tmp_path_factory.mktemp("hasty"), faulty(kit, 600), *limits) as deployment:
        yield deployment


RECORDS = [
    ("p429", "prefill", "http_status", 429),
    ("d400", "decode", "http_status", 400),
    ("params", "prefill", "no_kv_params", 502),
    ("empty", "decode", "bad_response", 502),
    ("reset", "decode", "reset", 502),
    ("headers", "decode", "first_byte_timeout", 504),
    ("hang", "decode", "first_byte_timeout", 504),
]
STREAMED = [
    ("engine", "decode", "stream_error", 200),
    ("error", "decode", "stream_error", 200),
    ("cut", "decode", "stream_cut", 200),
    ("stall", "decode", "idle_timeout", 200),
]
WHOLE = [
    ("engine", "decode", "http_status", 500),
    ("error", "decode", "http_status", 500),
    ("json", "decode", "bad_response", 502),
    ("cut", "decode", "reset", 502),
    ("stall", "decode", "idle_timeout", 504),
]
EVERY = [(*row, stream) for stream, part in ((True, STREAMED), (False, WHOLE)) for row in (*RECORDS, *part)]


@pytest.mark.parametrize(("tag", "leg", "error_class", "status", "stream"), EVERY)
async def test_every_fault_has_its_leg_class_and_status(
    hasty: Live, tag: str, leg: str, error_class: str, status: int, stream: bool
) -> None:
    record = await hasty.evaluate(tag, stream=stream)
    assert record.error and (record.error.leg, record.error.error_class) == (leg, error_class)
    assert record.http_status == status
    failed = [line for line in await hasty.legs(record.request_id) if line["error"]]
    assert [(line["leg"], line["error"]["class"]) for line in failed] == [(leg, error_class)]


async def test_case_14_status_and_body_of_the_leg_that_failed(pd: Live) -> None:
    for tag, leg, status, said in (("d400", "decode", 400, "decode says no"), ("p429", "prefill", 429, "slow down")):
        async with pd.post(f"case14{leg}", prompt=f"[{tag}] {QUESTION}", stream=True) as answer:
            assert answer.status == status and answer.headers["x-pdrig-error-leg"] == leg
            assert (await answer.json())["error"]["message"] == said
        (line,) = pd.ledger(f"case14{leg}", leg)
        assert (line["status"], line["outcome"]) == (status, "error")
    assert not pd.ledger("case14prefill", "decode")


async def test_case_15_an_error_after_three_tokens(pd: Live) -> None:
    async with pd.post("case15", prompt=f"[error] {QUESTION}", stream=True) as answer:
        events = (await answer.text()).strip().split("\n\n")
    assert answer.status == 200 and sum('"text"' in event for event in events) == 3
    assert json.loads(events[3].removeprefix("data: "))["error"]["message"] == "Internal server error"
    await until(lambda: pd.ledger("case15", "decode"))
    assert pd.ledger("case15", "decode")[0]["outcome"] == "stream_error"


async def test_case_10_text_only_in_the_reasoning(pd: Live) -> None:
    for stream in (True, False):
        record = await pd.evaluate("hidden", stream=stream, chat=True)
        assert record.error and (record.error.leg, record.error.error_class) == ("decode", "empty")
        assert (record.http_status, record.text) == (200, None)
        assert record.reasoning and "#### 7" in record.reasoning, "kept, and not scored"


LIMITS = {"min_tokens": 20, "max_tokens": 30, "max_completion_tokens": 30}


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
async def test_case_17_parameters_that_prefill_would_refuse(pd: Live, path: str, stream: bool) -> None:
    request_id = f"case17{'chat' if 'chat' in path else ''}{stream}"
    more: dict[str, Any] = {"messages": [{"role": "user", "content": QUESTION}]} if "chat" in path else {}
    more |= {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
    async with pd.post(request_id, path, **LIMITS, **more) as answer:
        text = await answer.text()
    assert answer.status == 200, text
    last = text.strip().split("\n\n")[-2].removeprefix("data: ") if stream else text
    assert 20 <= json.loads(last)["usage"]["completion_tokens"] <= 30, "decode got them as they came"
    # An engine writes its line when the last byte has gone out: the client may be quicker to look.
    await until(lambda: pd.ledger(request_id, "prefill") and pd.ledger(request_id, "decode"))
    (prefill,), (decode,) = pd.ledger(request_id, "prefill"), pd.ledger(request_id, "decode")
    assert (prefill["status"], prefill["completion_tokens"], prefill["stream"]) == (200, 1, False)
    assert (decode["stream"], decode["external_tokens"]) == (stream, decode["prompt_tokens"] - 1)


async def test_case_18_without_a_key_none_is_made_up(pd: Live) -> None:
    body = {"model": MODEL, "prompt": QUESTION}
    async with pd.client.post(f"{pd.url}/v1/completions", json=body) as answer:
        assert (answer.status, answer.headers["x-pdrig-error-leg"]) == (401, "prefill")
        assert await answer.json() == {"error": "Unauthorized"}


async def test_case_18_the_clients_key_goes_to_both_legs(pd: Live) -> None:
    async with pd.post("case18") as answer:
        assert answer.status == 200
    assert pd.ledger("case18", "prefill") and pd.ledger("case18", "decode")
    for file in pd.ledger_path.parent.rglob("*"):
        assert file.is_dir() or "Bearer None" not in file.read_text(), f"{file} holds the key"


async def test_case_19_two_requests_in_flight_with_one_id(pd: Live) -> None:
    async def ask() -> int:
        async with pd.post("case19", prompt=f"[slow] {QUESTION}") as answer:
            await answer.read()
            return int(answer.status)

    assert await asyncio.gather(ask(), ask()) == [200, 200]
    for side in ("prefill", "decode"):
        lines = pd.ledger("case19", side)
        assert len({line["request_id"] for line in lines}) == 2 and not any(line["duplicate_id"] for line in lines)
    assert max(line["concurrency"] for line in pd.ledger("case19", "decode")) == 2, "they were in flight together"
    assert len(await pd.legs("case19")) == 4


async def test_case_20_headers_and_then_nothing(hasty: Live) -> None:
    async with hasty.post("case20", prompt=f"[headers] {QUESTION}", stream=True) as answer:
        error = (await answer.json())["error"]
    assert (answer.status, error["leg"], error["class"]) == (504, "decode", "first_byte_timeout")
    await until(lambda: hasty.ledger("case20", "decode"))
    assert hasty.ledger("case20", "decode")[0]["outcome"] == "headers_then_nothing", "and decode was told to stop"


async def test_case_24_clients_that_go_away_after_prefill(pd: Live) -> None:
    async def leave(number: int) -> None:
        async with pd.post(f"case24x{number}", prompt=f"[hang] {QUESTION}"):
            raise AssertionError("nothing was to come")

    names = [f"case24x{number}" for number in range(20)]
    clients = [asyncio.create_task(leave(number)) for number in range(20)]
    # Those that hang are never computed.
    async with asyncio.timeout(PATIENCE_S):
        while await pd.counter("decode", "vllm:num_requests_waiting") < len(names):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    for client in clients:
        client.cancel()
    left = await asyncio.gather(*clients, return_exceptions=True)
    assert all(isinstance(end, asyncio.CancelledError) for end in left)
    await until(lambda: all(pd.ledger(name, "decode") for name in names))
    assert all(pd.ledger(name, "prefill")[0]["outcome"] == "answered" for name in names)
    for name in names:
        prefill, decode = await pd.legs(name)
        assert prefill["error"] is None and decode["error"]["class"] == "cancelled"
    async with asyncio.timeout(PATIENCE_S):
        while await pd.counter("prefill", "vllm:kv_cache_usage_perc"):  # noqa: ASYNC110
            await asyncio.sleep(0.1)
    assert await pd.counter("prefill", "vllm:nixl_num_kv_expired_reqs_total") >= 20
    log = next(server.log for server in pd.deployment.servers if server.role == "prefill")
    assert log and all(f"expired KV blocks for request cmpl-{name}-" in log.read_text() for name in names)
    assert await pd.counter("decode", "vllm:num_requests_running") == 0
    record = await pd.evaluate("none")
    assert record.error is None and "#### 7" in (record.text or "")


async def until(true: Any) -> None:
    """Until an engine has written what it did."""
    async with asyncio.timeout(PATIENCE_S):
        while not true():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


SCALAR = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8)
PART = SCALAR | st.lists(SCALAR, max_size=3) | st.dictionaries(st.text(max_size=8), SCALAR, max_size=3)
JSON_VALUE = PART | st.lists(PART, max_size=3) | st.dictionaries(st.text(max_size=8), PART, max_size=3)
PROMPT = st.sampled_from([*FAULTS, *["none"] * len(FAULTS)]).map(lambda tag: f"[{tag}] {QUESTION}")
BODY = st.fixed_dictionaries(
    {"model": st.just(MODEL), "prompt": PROMPT | JSON_VALUE | st.lists(st.integers(0, 40), max_size=9)},
    optional={
        "messages": st.just([{"role": "user", "content": QUESTION}]) | JSON_VALUE,
        "stream": st.booleans() | JSON_VALUE,
        "max_tokens": st.integers(-1, 40) | JSON_VALUE,
        "min_tokens": st.integers(-1, 50) | JSON_VALUE,
        "max_completion_tokens": st.integers(-1, 40) | JSON_VALUE,
        "stream_options": st.just({"include_usage": True}) | JSON_VALUE,
        "stop": st.text(max_size=3) | JSON_VALUE,
        "n": st.integers(0, 3) | JSON_VALUE,
        "kv_transfer_params": JSON_VALUE,
        "logprobs": JSON_VALUE,
    },
)
CALL = st.tuples(
    st.sampled_from(["/v1/completions", "/v1/completions", "/v1/chat/completions"]),
    BODY.map(lambda body: json.dumps(body).encode()) | st.binary(max_size=40),
    st.sampled_from([None, None, None, 0.0, 0.02, 0.2]),
)


MANY_LOGPROBS = json.dumps({"model": MODEL, "prompt": QUESTION, "logprobs": 10**6}).encode()


# Servers that an example has broken stay so: there is nothing to shrink it with.
@settings(max_examples=25, suppress_health_check=list(HealthCheck), phases=(Phase.explicit, Phase.generate))
@example(calls=[("/v1/completions", MANY_LOGPROBS, None)])
@given(calls=st.lists(CALL, min_size=1, max_size=8))
async def test_whatever_comes_ends_in_one_class(hasty: Live, calls: list[tuple[str, bytes, float | None]]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        outcomes = await asyncio.gather(*(call(hasty, *one) for one in calls))
    for outcome in outcomes:
        assert outcome in ("ok", "left", *get_args(ErrorClass)) and outcome != "internal"
    async with asyncio.timeout(PATIENCE_S):
        while await in_flight(hasty):  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    await hasty.deployment.flush_legs()
    assert hasty.deployment.legs
    lines = [json.loads(line) for line in hasty.deployment.legs.read_text().splitlines()]
    pairs = [(line["engine_request_id"], line["leg"]) for line in lines]
    assert len(set(pairs)) == len(pairs), "a leg has one line"
    assert all(line["error"] is None or line["error"]["class"] in get_args(ErrorClass) for line in lines)
    assert await hasty.deployment.lost() is None


async def call(pd: Live, path: str, data: bytes, leave_after_s: float | None) -> str:
    """How one request ended: `ok`, a class, or `left` where the client went away first."""
    headers = {**KEY, "Content-Type": "application/json"}
    try:
        async with (
            asyncio.timeout(leave_after_s),
            pd.client.post(pd.url + path, data=data, headers=headers) as answer,
        ):
            text = await answer.text()
    except TimeoutError:
        return "left"
    if answer.status != 200:
        return answer.headers["x-pdrig-error-class"]
    if answer.content_type != "text/event-stream":
        return "ok" if "choices" in json.loads(text) else "no answer in a 200"
    last = text.strip().rpartition("data: ")[2]
    errors = [json.loads(x)["error"] for x in text.split("data: ") if x.startswith('{"error"')]
    if errors:
        return str(errors[0].get("class", "stream_error"))
    return "ok" if last == "[DONE]" else "a stream without an end"


async def in_flight(pd: Live) -> float:
    async with pd.client.get(f"{pd.url}/metrics") as answer:
        lines = (await answer.text()).splitlines()
    return next(float(line.split()[-1]) for line in lines if line.startswith("pdrig_proxy_in_flight "))
