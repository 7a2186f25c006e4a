"""Prompts that have to fit a server's blocks: its tokenizer and its block size are asked before the questions are."""

from __future__ import annotations

from typing import Any

import httpx

from evals.boundaries import fitted
from evals.errors import BadParams
from evals.shapes import Task
from rig.counters import Source, read_once
from rig.deploy import Deployment

TOKENIZE_TIMEOUT_S = 60.0


async def fit_to(task: Task, deployment: Deployment) -> Task:
    """The task as it can be asked of a deployment: its first server, a prefill one where there is one, counts."""
    if task.edges is None:
        return task
    server = deployment.servers[0]
    return await fit(task, server.url, server.metrics_url, deployment.model, deployment.headers)


async def fit(task: Task, url: str, metrics_url: str, model: str, headers: dict[str, str]) -> Task:
    """The task as it can be asked of a server, given by its address; itself where nothing has to be fitted.

    Tokens are counted by vLLM's `/tokenize` (vllm/entrypoints/serve/tokenize), blocks are those of
    rig.series.block_size. Raises BadParams where either is not to be had.
    """
    if task.edges is None:
        return task
    (reading,) = await read_once([Source("server", "server", metrics_url)])
    if reading.block_size is None:
        why = reading.missing or "it does not say how many tokens a block of its KV cache holds"
        raise BadParams(f"{task.name}: {metrics_url}: {why}; prompts cannot be fitted to its blocks")
    async with httpx.AsyncClient(timeout=TOKENIZE_TIMEOUT_S, trust_env=False, headers=headers) as client:
        server = _Tokenizer(client, url, model, task)
        longest = (await server.ask("x"))["max_model_len"]
        answer = task.params.get("max_tokens") or task.params.get("max_completion_tokens") or 0
        return await fitted(task, server.count, reading.block_size, int(longest) - int(answer) + 1)


class _Tokenizer:
    """The server's own count of a prompt's tokens, as the endpoint that the task uses has it."""

    def __init__(self, client: httpx.AsyncClient, url: str, model: str, task: Task) -> None:
        self._client = client
        self._url = f"{url.rstrip('/').removesuffix('/v1')}/tokenize"
        self._model = model
        self._chat = task.endpoint == "chat"
        self._name = task.name

    async def ask(self, prompt: str) -> dict[str, Any]:
        given = {"messages": [{"role": "user", "content": prompt}]} if self._chat else {"prompt": prompt}
        try:
            response = await self._client.post(self._url, json={"model": self._model, **given})
            response.raise_for_status()
            answer: dict[str, Any] = response.json()
            return {"count": int(answer["count"]), "max_model_len": int(answer["max_model_len"])}
        except (httpx.HTTPError, ValueError, KeyError, TypeError) as error:
            why = str(error) or type(error).__name__
            raise BadParams(f"{self._name}: {self._url} does not count tokens ({why})") from None

    async def count(self, prompt: str) -> int:
        return int((await self.ask(prompt))["count"])
