"""The checks of an answer, against answers made up here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest

from rig.deploy import ready
from rig.errors import NotUsable

URL = "http://127.0.0.1:1"
Answer = dict[str, Any]
Change = Callable[[dict[str, str]], Any]


def completion(text: str = " 7", top: list[dict[str, float | None]] | None = None, **choice: Any) -> Answer:
    top = [{" 7": -0.1, " 8": -2.0, " 9": -2.0}] if top is None else top
    chosen = [next(iter(position.values())) for position in top]
    tokens = [next(iter(position)) for position in top]
    logprobs = {"tokens": tokens, "token_logprobs": chosen, "top_logprobs": top}
    return {"choices": [{"text": text, "logprobs": logprobs, **choice}]}


def client(answer: Callable[[httpx.Request], httpx.Response]) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.MockTransport(answer))


def server(body: Any, status: int = 200, model: str = "tiny") -> httpx.AsyncClient:
    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/v1/models":
            return httpx.Response(200, json={"data": [{"id": model}]})
        return httpx.Response(status, text=body) if isinstance(body, str) else httpx.Response(status, json=body)

    return client(answer)


END = "<|endoftext|>"
USELESS = [
    ("equal", completion("", [{END: -6.1, "a": -6.1, "b": -6.1}]), "all logits are equal (the 3 best tokens"),
    ("equal, with text", completion(" a", [{"a": -6.1, "b": -6.1}] * 3), "all logits are equal"),
    ("special only", completion("", [{END: -0.1, "a": -3.0}]), f"only special tokens, no text ('{END}')"),
    ("blank", completion(" \n", [{"\n": -0.1, "a": -3.0}]), "only special tokens, no text"),
    ("no tokens", completion("", []), "only special tokens, no text"),
    ("minus infinity", completion(" 7", [{" 7": -9999.0, "a": -9999.0}]), "not finite"),
    ("null logprob", completion(" 7", [{" 7": None, "a": -1.0}]), "no text or no logprobs"),
    ("no logprobs", completion(logprobs=None), "no text or no logprobs"),
    ("null text", {"choices": [{"text": None, "logprobs": {}}]}, "no text or no logprobs"),
    ("no choices", {"choices": []}, "no text or no logprobs"),
    ("a list", [], "without a JSON object"),
    ("not JSON", "ok", "without a JSON object"),
    (
        "NaN",
        '{"choices": [{"text": " 7", "logprobs": {"tokens": ["7"], "token_logprobs": [NaN], '
        '"top_logprobs": [{"7": NaN, "8": NaN}]}}]}',
        "not finite",
    ),
]


@pytest.mark.parametrize(("body", "text"), [row[1:] for row in USELESS], ids=[row[0] for row in USELESS])
async def test_useless_answers(body: Any, text: str) -> None:
    async with server(body) as http:
        with pytest.raises(NotUsable) as raised:
            await ready.check_server(http, "decode-0", URL, "tiny")
    assert text in str(raised.value)
    assert raised.value.server == "decode-0"


USEFUL = [
    completion(),
    completion(" 7", [{" 7": -0.1}]),
    completion(" 7", [{" 7": -1.0, "a": -1.0}, {"b": 0.0, "c": -9999.0}]),
]


@pytest.mark.parametrize("body", USEFUL)
async def test_useful_answers(body: Answer) -> None:
    async with server(body) as http:
        await ready.check_server(http, "decode-0", URL, "tiny")


async def test_a_model_that_ends_at_once_after_one_prompt_is_asked_another() -> None:
    bodies = iter([completion("", [{END: -0.1, "a": -3.0}]), completion()])

    def answer(request: httpx.Request) -> httpx.Response:
        models = request.url.path == "/v1/models"
        return httpx.Response(200, json={"data": [{"id": "tiny"}]} if models else next(bodies))

    async with client(answer) as http:
        await ready.check_server(http, "decode-0", URL, "tiny")
    assert next(bodies, None) is None


STATUSES = [(500, ready.NoAnswer), (503, ready.NoAnswer), (400, NotUsable), (404, NotUsable)]


@pytest.mark.parametrize(("status", "error"), STATUSES)
async def test_an_error_status_is_told_with_its_body(status: int, error: type[NotUsable]) -> None:
    async with server("no\nway", status) as http:
        with pytest.raises(error, match=rf"decode-0 answered {status} to /v1/completions: no way") as raised:
            await ready.check_server(http, "decode-0", URL, "tiny")
    assert type(raised.value) is error


async def test_another_model() -> None:
    async with server(completion(), model="big") as http:
        with pytest.raises(NotUsable, match="serves big, not tiny"):
            await ready.check_server(http, "decode-0", URL, "tiny")


async def test_metrics() -> None:
    async with client(lambda request: httpx.Response(404)) as http:
        with pytest.raises(NotUsable, match="answers 404"):
            await ready.check_metrics(http, "decode-0", f"{URL}/metrics")
    async with client(lambda request: httpx.Response(200)) as http:
        await ready.check_metrics(http, "decode-0", f"{URL}/metrics")


HEALTH = [(200, "well"), (503, "sick"), (httpx.ConnectError, "refused"), (httpx.ReadTimeout, "busy")]


@pytest.mark.parametrize(("answer", "health"), HEALTH)
async def test_health(answer: Any, health: str) -> None:
    def respond(request: httpx.Request) -> httpx.Response:
        if isinstance(answer, int):
            return httpx.Response(answer)
        raise answer("x")

    async with client(respond) as http:
        assert await ready.health(http, URL) == health


class Proxy:
    """Round robin over every pair; `change` alters one answer's headers."""

    def __init__(
        self, prefills: int, decodes: int, change: Callable[[dict[str, str]], Any] = lambda headers: None
    ) -> None:
        self.pairs = [(p, d) for p in range(prefills) for d in range(decodes)]
        self.change = change
        self.asked: list[tuple[int, int]] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        pair = self.pairs[len(self.asked) % len(self.pairs)]
        self.asked.append(pair)
        headers = {ready.PREFILL_HEADER: f"prefill-{pair[0]}", ready.DECODE_HEADER: f"decode-{pair[1]}"}
        self.change(headers)
        return httpx.Response(200, json=completion(), headers=headers)


@pytest.mark.parametrize(("prefills", "decodes", "asked"), [(1, 1, 1), (2, 3, 6), (10, 10, ready.MAX_PAIRS)])
async def test_each_pair_hands_off_once(prefills: int, decodes: int, asked: int) -> None:
    proxy = Proxy(prefills, decodes)
    if prefills * decodes > ready.MAX_PAIRS:
        proxy.pairs = [(n % prefills, n % decodes) for n in range(asked)]
    async with client(proxy) as http:
        await ready.check_pairs(http, URL, "tiny", prefills, decodes, limit_s=60)
    assert len(proxy.asked) == asked


PAIR_FAULTS: list[tuple[str, Change, str]] = [
    ("no prefill", lambda headers: headers.pop(ready.PREFILL_HEADER), "without x-pdrig-prefill: no hand-off"),
    ("no decode", lambda headers: headers.pop(ready.DECODE_HEADER), "without x-pdrig-decode"),
    ("lenient", lambda headers: headers.update({ready.LENIENT_HEADER: "no_kv_params"}), "no hand-off took place"),
    (
        "one decode only",
        lambda headers: headers.update({ready.DECODE_HEADER: "decode-0"}),
        r"2 hand-offs reached 1 of 2 instances by x-pdrig-decode \(decode-0\)",
    ),
]


@pytest.mark.parametrize(("change", "text"), [row[1:] for row in PAIR_FAULTS], ids=[row[0] for row in PAIR_FAULTS])
async def test_pairs_that_do_not_hand_off(change: Change, text: str) -> None:
    async with client(Proxy(1, 2, change)) as http:
        with pytest.raises(NotUsable, match=text):
            await ready.check_pairs(http, URL, "tiny", 1, 2, limit_s=60)


async def test_a_failed_hand_off_is_told_with_its_body() -> None:
    async with client(lambda request: httpx.Response(502, text="decode-0 refused")) as http:
        with pytest.raises(ready.NoAnswer, match="proxy answered 502 to /v1/completions: decode-0 refused"):
            await ready.check_pairs(http, URL, "tiny", 1, 1, limit_s=60)
