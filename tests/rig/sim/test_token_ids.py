"""Token ids, logprobs and canaries through the evaluator's own client, on a simulated engine."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from evals.canaries import check, make_canaries
from evals.client import Request, Target
from evals.load import ClosedLoop, requests_of, run_load
from evals.records import RequestRecord
from evals.tasks import Endpoint, build_task


@pytest.fixture(scope="module")
def engine(start: Any) -> str:
    return str(start().url)


def answers(url: str, endpoint: Endpoint, requests: list[Request], stream: bool) -> list[RequestRecord]:
    records: list[RequestRecord] = []
    target = Target(url, "tiny", endpoint=endpoint)
    asyncio.run(run_load(target, requests, ClosedLoop(4), records.append, stream=stream))
    assert [r.error for r in records] == [None] * len(requests)
    return records


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("endpoint", ["completions", "chat"])
@pytest.mark.parametrize("divergence", ["off", "tokens", "logprobs"])
def test_what_was_asked_for_comes_back(engine: str, endpoint: Endpoint, divergence: Any, stream: bool) -> None:
    task = build_task("gsm-tiny", limit=4, endpoint=endpoint, divergence=divergence)
    for record in answers(engine, endpoint, list(requests_of(task)), stream):
        assert (record.token_ids is None) == (divergence == "off")
        assert (record.logprobs is None) == (divergence != "logprobs")
        if record.token_ids is not None:
            assert len(record.token_ids) == record.completion_tokens
        if record.logprobs is not None:
            assert record.token_ids is not None and len(record.logprobs) == len(record.token_ids)
            assert max(record.logprobs) <= 0


def test_streamed_and_whole_answers_hold_the_same(engine: str) -> None:
    for endpoint in ("completions", "chat"):
        task = build_task("gsm-tiny", limit=4, endpoint=endpoint, divergence="logprobs")
        found = [
            {r.sample_id: (r.text, r.token_ids, r.logprobs) for r in answers(engine, endpoint, asked, stream)}
            for stream in (True, False)
            for asked in [list(requests_of(task))]
        ]
        assert found[0] == found[1]


@pytest.mark.parametrize("endpoint", ["completions", "chat"])
@pytest.mark.parametrize("name", ["gsm-tiny", "gsm8k"])
def test_canaries_come_back_right(engine: str, name: str, endpoint: Endpoint) -> None:
    params = {"max_tokens": 256, "temperature": 0.0, "stop": ["Question:"]}
    canaries = make_canaries(name, 12, "cell/0", params, endpoint)
    requests = [Request(c.sample.sample_id, c.sample.prompt, c.params, c.sample.kind) for c in canaries]
    records = {r.sample_id: r for r in answers(engine, endpoint, requests, stream=True)}
    owners = {c.code: c.sample.sample_id for c in canaries}
    for canary in canaries:
        record = records[canary.sample.sample_id]
        assert record.kind == "canary"
        assert check(canary, record.text, owners) == ("right", canary.code, None)
    asked = [replace(request, prompt=requests[0].prompt) for request in requests[1:]]
    swapped = {r.sample_id: r for r in answers(engine, endpoint, asked, stream=True)}
    for canary in canaries[1:]:
        text = swapped[canary.sample.sample_id].text
        assert check(canary, text, owners) == ("crossed", canaries[0].code, "canary-0000")
