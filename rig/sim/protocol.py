"""Requests and answers of vLLM's completion endpoints: what is asked, and the JSON that answers it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Literal

from rig.sim import tokens
from rig.sim.options import Limits

Endpoint = Literal["completions", "chat"]

ERROR_TYPES = {
    400: "BadRequestError",
    404: "NotFoundError",
    500: "InternalServerError",
    503: "ServiceUnavailableError",
}


class Refused(Exception):
    """A request that gets an error instead of an answer."""

    def __init__(self, status: int, message: str, param: str | None = None) -> None:
        self.status, self.message, self.param = status, message, param
        super().__init__(message)

    def body(self) -> dict[str, Any]:
        return error_body(self.status, self.message, self.param)


def error_body(status: int, message: str, param: str | None = None) -> dict[str, Any]:
    """vLLM's error object (vllm/entrypoints/serve/engine/protocol.py ErrorResponse)."""
    kind = ERROR_TYPES.get(status) or HTTPStatus(status).phrase
    return {"error": {"message": message, "type": kind, "param": param, "code": status}}


@dataclass(frozen=True)
class Prompt:
    """One prompt as text and as tokens."""

    text: str
    token_ids: tuple[int, ...]


@dataclass(frozen=True)
class Ask:
    """One request, checked."""

    endpoint: Endpoint
    model: str
    prompts: tuple[Prompt, ...]
    n: int
    stream: bool
    max_tokens: int
    min_tokens: int
    stop: tuple[str, ...]
    ignore_eos: bool
    logprobs: int | None
    include_usage: bool
    return_token_ids: bool
    kv_params: dict[str, Any] | None


def read(endpoint: Endpoint, body: Any, models: Sequence[str], limits: Limits) -> Ask:
    """Check a request's body as vLLM does. Raises Refused."""
    if not isinstance(body, dict):
        raise Refused(400, "Input should be a valid dictionary")
    model = body.get("model") or models[0]
    if model not in models:
        raise Refused(404, f"The model `{model}` does not exist.", "model")
    stream = _flag(body, "stream")
    options = body.get("stream_options")
    if options is not None and not stream:
        raise Refused(400, "Stream options can only be defined when `stream=True`.", "stream_options")
    prompts = _messages(body) if endpoint == "chat" else _prompts(body.get("prompt"))
    longest = max(len(prompt.token_ids) for prompt in prompts)
    limit = _limit(endpoint, body, limits.max_model_len - longest)
    if longest + max(limit, 1) > limits.max_model_len:
        raise Refused(
            400,
            f"This model's maximum context length is {limits.max_model_len} tokens. However, you requested {limit} "
            f"output tokens and your prompt contains at least {longest} input tokens, for a total of at least "
            f"{longest + limit} tokens. Please reduce the length of the input prompt or the number of requested "
            "output tokens.",
            "input_tokens",
        )
    if limit < 1:
        raise Refused(400, f"max_tokens must be at least 1, got {limit}.", "max_tokens")
    least = _whole(body, "min_tokens", 0)
    if least < 0:
        raise Refused(400, f"min_tokens must be greater than or equal to 0, got {least}.")
    if least > limit:
        raise Refused(400, f"min_tokens must be less than or equal to max_tokens={limit}, got {least}.")
    n = _whole(body, "n", 1)
    if n < 1:
        raise Refused(400, f"n must be at least 1, got {n}.", "n")
    if n > limits.max_sequences:
        raise Refused(
            400,
            f"n must be at most {limits.max_sequences}, got {n}. To increase this limit, set the "
            "VLLM_MAX_N_SEQUENCES environment variable.",
            "n",
        )
    if n > 1 and body.get("temperature") == 0:
        raise Refused(400, f"n must be 1 when using greedy sampling, got {n}.", "n")
    params = body.get("kv_transfer_params")
    return Ask(
        endpoint=endpoint,
        model=model,
        prompts=prompts,
        n=n,
        stream=stream,
        max_tokens=limit,
        min_tokens=least,
        stop=_stop(body.get("stop")),
        ignore_eos=_flag(body, "ignore_eos"),
        logprobs=_logprobs(endpoint, body, limits.max_logprobs),
        include_usage=bool(isinstance(options, dict) and options.get("include_usage")),
        return_token_ids=_flag(body, "return_token_ids"),
        kv_params=params if isinstance(params, dict) else None,
    )


def tokenized(body: Any, models: Sequence[str]) -> tuple[int, ...]:
    """The token ids of what a request to `/tokenize` holds. Raises Refused."""
    if not isinstance(body, dict):
        raise Refused(400, "Input should be a valid dictionary")
    if body.get("model") not in (None, *models):
        raise Refused(404, f"The model `{body['model']}` does not exist.", "model")
    prompts = _messages(body) if "messages" in body else _prompts(body.get("prompt"))
    return prompts[0].token_ids


def _flag(body: dict[str, Any], name: str) -> bool:
    value = body.get(name)
    if value is not None and not isinstance(value, bool):
        raise Refused(400, f"{name}: Input should be a valid boolean", name)
    return bool(value)


def _whole(body: dict[str, Any], name: str, default: int) -> int:
    value = body.get(name)
    if value is None:
        return default
    if not isinstance(value, int) or isinstance(value, bool):
        raise Refused(400, f"{name}: Input should be a valid integer", name)
    return value


def _limit(endpoint: Endpoint, body: dict[str, Any], room: int) -> int:
    if endpoint == "completions":
        return _whole(body, "max_tokens", 16)
    return _whole(body, "max_completion_tokens", _whole(body, "max_tokens", room))


def _logprobs(endpoint: Endpoint, body: dict[str, Any], most: int | None) -> int | None:
    """How many logprobs a token gets; None where none were asked for, -1 asks for the whole vocabulary's."""
    name = "logprobs" if endpoint == "completions" else "top_logprobs"
    asked = _whole(body, name, 0)
    if endpoint == "chat" and not _flag(body, "logprobs"):
        if asked:
            raise Refused(400, "when using `top_logprobs`, `logprobs` must be set to true.", name)
        return None
    if body.get("logprobs") is None:
        return None
    if asked < -1:
        raise Refused(400, f"logprobs must be non-negative or -1, got {asked}.", name)
    count = tokens.VOCABULARY if asked == -1 else asked
    if most is not None and count > most:
        raise Refused(
            400, f"Requested sample logprobs of {count}, which is greater than max allowed: {most}", "logprobs"
        )
    return count


def _stop(value: Any) -> tuple[str, ...]:
    stops = [] if value is None else [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or not all(isinstance(stop, str) for stop in stops):
        raise Refused(400, "stop: Input should be a valid string or list of strings", "stop")
    return tuple(stop for stop in stops if stop)


def _prompts(value: Any) -> tuple[Prompt, ...]:
    if isinstance(value, str) or (isinstance(value, list) and value and all(type(item) is int for item in value)):
        value = [value]
    if not isinstance(value, list) or not value:
        raise Refused(400, "Either prompt or prompt_embeds must be provided and non-empty.", "prompt")
    return tuple(_prompt(item) for item in value)


def _prompt(value: Any) -> Prompt:
    if isinstance(value, str):
        return Prompt(value, tuple(map(tokens.token_id, tokens.split(value))))
    if isinstance(value, list) and value and all(type(item) is int for item in value):
        return Prompt(tokens.text_of(value), tuple(value))
    raise Refused(400, "prompt: Input should be a valid string, list of tokens, or list of these", "prompt")


def _messages(body: dict[str, Any]) -> tuple[Prompt, ...]:
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise Refused(400, "messages: Field required", "messages")
    parts = []
    for message in messages:
        if not isinstance(message, dict) or "role" not in message:
            raise Refused(400, "messages: each needs a role", "messages")
        content = message.get("content") or ""
        if isinstance(content, list):
            content = "".join(part.get("text", "") for part in content if isinstance(part, dict))
        parts.append(f"{message['role']}: {content}\n\n")
    return (_prompt("".join(parts)),)
