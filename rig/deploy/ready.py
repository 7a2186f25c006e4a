"""Is a server of use? Asked over HTTP, down to the tokens: a server can be healthy and answer nonsense.

The answer to a real completion must have text of ordinary tokens and finite, unequal logprobs. A model with an
empty output layer gives all tokens the same logprob, and end-of-text first; an engine with an unsuitable kernel
dies at its first request.
"""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import httpx

from rig import clients
from rig.errors import NotUsable

PROMPTS = (
    "Question: Ann has 3 apples and buys 4 more apples. How many apples does Ann have?\nAnswer:",
    "1 2 3 4 5 6 7 8 9",
    "The quick brown fox jumps over the lazy",
)
MAX_TOKENS = 8
TOP_LOGPROBS = 5
# vLLM writes minus infinity as this number, because JSON has none.
NO_LOGPROB = -9999.0
HEALTH = "/health"
HEALTH_TIMEOUT_S = 5.0
# What is asked once takes its time where many servers start side by side.
ANSWER_TIMEOUT_S = 30.0
POLL_FIRST_S = 0.1
POLL_MAX_S = 1.0
MAX_PAIRS = 64
BODY_CHARS = 300
PREFILL_HEADER = "x-pdrig-prefill"
DECODE_HEADER = "x-pdrig-decode"
LENIENT_HEADER = "x-pdrig-lenient"


Health = Literal["well", "sick", "busy", "refused"]


class NoAnswer(NotUsable):
    """There was no answer at all, or a server error: the process behind it may be dying."""


def client(env: Mapping[str, str] | None = None) -> httpx.AsyncClient:
    """A client with the server's API key, if it has one."""
    return clients.client(auth_headers(env))


def auth_headers(env: Mapping[str, str] | None = None) -> dict[str, str]:
    """What a server that was started with `env` wants to see of its API key; nothing where it has none."""
    key = (env or {}).get("VLLM_API_KEY") or os.environ.get("VLLM_API_KEY")
    return {"Authorization": f"Bearer {key}"} if key else {}


async def health(http: httpx.AsyncClient, url: str, path: str = HEALTH) -> Health:
    """What `/health`, or another path, says now.

    200 is well, any other status sick, no connection refused, no answer in time busy.
    """
    try:
        response = await http.get(f"{url}{path}", timeout=HEALTH_TIMEOUT_S)
    except (httpx.ConnectError, httpx.InvalidURL):
        return "refused"
    except httpx.HTTPError:
        return "busy"
    return "well" if response.status_code == 200 else "sick"


async def wait_healthy(http: httpx.AsyncClient, url: str, path: str = HEALTH) -> None:
    """Returns when `path` answers 200; the caller sets the limit."""
    pause_s = POLL_FIRST_S
    while await health(http, url, path) != "well":
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, POLL_MAX_S)


async def check_server(http: httpx.AsyncClient, name: str, url: str, model: str) -> None:
    """Model name, then a real completion. Raises NotUsable with the reason, NoAnswer if there was no answer."""
    await _check_model(http, name, url, model)
    problem = "no answer"
    for prompt in PROMPTS:
        response = await _post(http, name, url, model, prompt)
        problem = _problem(_json(response, name)) or ""
        if not problem:
            return
        # Some models end at once after one prompt or the other; none may after all of them.
        if not problem.startswith(_ONLY_SPECIAL):
            break
    raise NotUsable(f"{name} is healthy and useless: {problem}", name)


async def check_metrics(http: httpx.AsyncClient, name: str, url: str) -> None:
    """Raises NotUsable if the counters cannot be read: without them nothing proves that KV moved."""
    try:
        status = (await http.get(url, timeout=ANSWER_TIMEOUT_S)).status_code
    except httpx.HTTPError as error:
        raise NoAnswer(f"{name}: {url} does not answer ({_name(error)})", name) from error
    if status != 200:
        raise NotUsable(f"{name}: {url} answers {status}; the counters there are needed as evidence", name)


async def check_pairs(
    http: httpx.AsyncClient,
    url: str,
    model: str,
    prefills: int,
    decodes: int,
    limit_s: float,
    parameters: bool = True,
) -> None:
    """As many hand-offs as there are pairs, at most MAX_PAIRS, one after the other: the proxy's round robin
    brings each prefill instance together with each decode instance.

    `url` is the proxy's; `limit_s` bounds each request; `parameters` says that prefill must give decode some. Raises
    NotUsable (NoAnswer) if an answer is not a 200 with usable tokens that names both instances, or if
    an instance never had its turn.
    """
    pairs = min(prefills * decodes, MAX_PAIRS)
    seen: dict[str, set[str]] = {PREFILL_HEADER: set(), DECODE_HEADER: set()}
    for number in range(pairs):
        response = await _through(http, url, model, f"{number}. {PROMPTS[0]}", limit_s)
        for header, instances in seen.items():
            if not response.headers.get(header):
                raise NotUsable(f"the proxy at {url} answered 200 without {header}: no hand-off took place", "proxy")
            instances.add(response.headers[header])
        if parameters and response.headers.get(LENIENT_HEADER):
            raise NotUsable(f"no hand-off took place: prefill gave no kv_transfer_params ({LENIENT_HEADER})", "proxy")
        pair = f"{response.headers[PREFILL_HEADER]} to {response.headers[DECODE_HEADER]}"
        problem = _problem(_json(response, "proxy"))
        if problem and not problem.startswith(_ONLY_SPECIAL):
            raise NotUsable(f"the hand-off from {pair} is useless: {problem}", "proxy")
    for header, expected in ((PREFILL_HEADER, prefills), (DECODE_HEADER, decodes)):
        if len(seen[header]) < min(expected, pairs):
            raise NotUsable(
                f"{pairs} hand-offs reached {len(seen[header])} of {expected} instances by {header} "
                f"({', '.join(sorted(seen[header]))})",
                "proxy",
            )


async def ask_through(http: httpx.AsyncClient, url: str, model: str, prompt: str, limit_s: float) -> None:
    """One request to a router. Raises NotUsable (NoAnswer) if its answer is not a 200 with usable tokens in time."""
    problem = _problem(_json(await _through(http, url, model, prompt, limit_s), "proxy"))
    if problem and not problem.startswith(_ONLY_SPECIAL):
        raise NotUsable(f"what the router at {url} answers is useless: {problem}", "proxy")


async def _through(http: httpx.AsyncClient, url: str, model: str, prompt: str, limit_s: float) -> httpx.Response:
    try:
        async with asyncio.timeout(limit_s):
            return await _post(http, "proxy", url, model, prompt)
    except TimeoutError:
        raise NoAnswer(f"a hand-off through the proxy did not finish within {limit_s:g} s", "proxy") from None


async def _check_model(http: httpx.AsyncClient, name: str, url: str, model: str) -> None:
    try:
        response = await http.get(f"{url}/v1/models", timeout=ANSWER_TIMEOUT_S)
    except httpx.HTTPError as error:
        raise NoAnswer(f"{name}: {url}/v1/models does not answer ({_name(error)})", name) from error
    _require_200(response, name)
    data = _json(response, name).get("data")
    served = [str(entry.get("id")) for entry in data if isinstance(entry, dict)] if isinstance(data, list) else []
    if model not in served:
        raise NotUsable(f"{name} at {url} serves {', '.join(served) or 'no model'}, not {model}", name)


async def _post(http: httpx.AsyncClient, name: str, url: str, model: str, prompt: str) -> httpx.Response:
    body = {"model": model, "prompt": prompt, "max_tokens": MAX_TOKENS, "temperature": 0, "logprobs": TOP_LOGPROBS}
    try:
        response = await http.post(f"{url}/v1/completions", json=body)
    except httpx.HTTPError as error:
        raise NoAnswer(f"{name} gave no answer to a completion ({_name(error)})", name) from error
    _require_200(response, name)
    return response


def _require_200(response: httpx.Response, name: str) -> None:
    if response.status_code != 200:
        kind = NoAnswer if response.status_code >= 500 else NotUsable
        text = " ".join(response.text.split())[:BODY_CHARS]
        raise kind(f"{name} answered {response.status_code} to {response.request.url.path}: {text}", name)


def _json(response: httpx.Response, name: str) -> dict[str, Any]:
    try:
        body = response.json()
    except ValueError:
        body = None
    if not isinstance(body, dict):
        raise NotUsable(f"{name} answered 200 to {response.request.url.path} without a JSON object", name)
    return body


_ONLY_SPECIAL = "only special tokens"


def _problem(body: Mapping[str, Any]) -> str | None:
    """What is wrong with a completion; None if nothing is."""
    try:
        choice = body["choices"][0]
        text = choice["text"]
        logprobs = choice["logprobs"]
        tokens, chosen, top = logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"]
        values = [float(value) for value in chosen]
        spread = [[float(value) for value in position.values()] for position in top]
    except (KeyError, IndexError, TypeError, ValueError, AttributeError):
        return f"its completion has no text or no logprobs (asked for {TOP_LOGPROBS})"
    best = [max(position) for position in spread if position]
    if not _finite([*values, *best]) or any(math.isnan(value) for position in spread for value in position):
        return "its logprobs are not finite"
    # One candidate a position says nothing about the others.
    if spread and all(len(position) > 1 and max(position) == min(position) for position in spread):
        return f"all logits are equal (the {len(spread[0])} best tokens share one logprob)"
    if not str(text).strip():
        return f"{_ONLY_SPECIAL}, no text ({' '.join(map(repr, tokens[:MAX_TOKENS]))})"
    return None


def _finite(values: Iterable[float]) -> bool:
    return all(math.isfinite(value) and value > NO_LOGPROB for value in values)


def _name(error: httpx.HTTPError) -> str:
    return str(error) or type(error).__name__
