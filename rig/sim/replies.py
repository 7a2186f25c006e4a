"""Answers of vLLM's completion endpoints: the JSON of whole answers and of stream chunks. Pure."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any

import orjson

from rig.sim import tokens
from rig.sim.protocol import Ask

DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True)
class Choice:
    """One answer in pieces: the tokens, and their logprobs where asked."""

    pieces: tuple[str, ...]
    finish_reason: str
    stop_reason: str | None
    key: str
    shift: float = 0.0
    reasoning: tuple[str, ...] = ()
    hidden: bool = False
    """True where the text is in the reasoning and the content null."""

    tie: tuple[int, str] | None = None
    """The index of a piece that had a rival about as likely, and the rival."""

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    @cached_property
    def generated(self) -> tuple[str, ...]:
        """All tokens in order, the reasoning's first."""
        return self.reasoning + self.pieces

    def logprob(self, at: int) -> float:
        """The logprob in nats of the generated token at an index."""
        piece = self.generated[at]
        tied = self._rival(at) is not None
        return tokens.near_tie(piece, at, self.key) if tied else tokens.logprob(piece, at, self.key, self.shift)

    def likeliest(self, at: int, count: int) -> list[tuple[str, float]]:
        """The `count` likeliest tokens there with their logprobs; the generated one first."""
        value, rival = self.logprob(at), self._rival(at)
        found = tokens.alternatives(self.generated[at], value, at, self.key, count)
        if rival is not None and count > 1:
            found[1] = (rival, min(value, tokens.near_tie(rival, at, self.key)))
        return found

    def _rival(self, at: int) -> str | None:
        return self.tie[1] if self.tie is not None and at == len(self.reasoning) + self.tie[0] else None


def usage(choices: Sequence[Choice], prompt_tokens: int) -> dict[str, Any]:
    """The usage object."""
    generated = sum(len(choice.generated) for choice in choices)
    return {
        "prompt_tokens": prompt_tokens,
        "total_tokens": prompt_tokens + generated,
        "completion_tokens": generated,
        "prompt_tokens_details": None,
    }


def full(ask: Ask, choices: Sequence[Choice], response_id: str, used: dict[str, Any], params: Any) -> dict[str, Any]:
    """The body of an answer that is not streamed."""
    chat = ask.endpoint == "chat"
    return {
        "id": response_id,
        "object": "chat.completion" if chat else "text_completion",
        "created": int(time.time()),
        "model": ask.model,
        "choices": [_full_choice(ask, index, choice) for index, choice in enumerate(choices)],
        "usage": used,
        "kv_transfer_params": params,
    }


def _full_choice(ask: Ask, index: int, choice: Choice) -> dict[str, Any]:
    body: dict[str, Any] = {"index": index}
    if ask.endpoint == "chat":
        content = None if choice.hidden else choice.text
        reasoning = "".join(choice.reasoning) or None
        body["message"] = {"role": "assistant", "content": content, "refusal": None, "reasoning": reasoning}
    else:
        body["text"] = choice.text
    body["logprobs"] = logprobs(ask, choice, 0, len(choice.generated))
    body["finish_reason"], body["stop_reason"] = choice.finish_reason, choice.stop_reason
    body["token_ids"] = list(map(tokens.token_id, choice.generated)) if ask.return_token_ids else None
    if ask.return_token_ids and ask.endpoint == "completions":
        body["prompt_token_ids"] = list(ask.prompts[index // ask.n].token_ids)
    return body


def logprobs(ask: Ask, choice: Choice, start: int, end: int) -> dict[str, Any] | None:
    """The logprobs of the tokens from `start` to `end` in the endpoint's shape; None where not asked."""
    if ask.logprobs is None:
        return None
    pieces = choice.generated[start:end]
    if ask.endpoint == "chat":
        return {
            "content": [
                {
                    **_token(piece, choice.logprob(at)),
                    "top_logprobs": [_token(*pair) for pair in choice.likeliest(at, ask.logprobs)],
                }
                for at, piece in enumerate(pieces, start)
            ]
        }
    offsets = list(accumulate(map(len, pieces), initial=sum(map(len, choice.generated[:start]))))
    return {
        "text_offset": offsets[:-1],
        "token_logprobs": [choice.logprob(at) for at in range(start, end)],
        "tokens": list(pieces),
        "top_logprobs": [dict(choice.likeliest(at, max(ask.logprobs, 1))) for at in range(start, end)],
    }


def _token(piece: str, value: float) -> dict[str, Any]:
    return {"token": piece, "logprob": value, "bytes": list(piece.encode())}


def event(body: dict[str, Any]) -> bytes:
    """One server-sent event."""
    return b"data: " + orjson.dumps(body) + b"\n\n"


def chunks(
    ask: Ask, choices: Sequence[Choice], response_id: str, used: dict[str, Any]
) -> Iterator[tuple[int | None, bytes]]:
    """The events of a streamed answer, each with its token's index (None: no token), without the end mark."""
    chat = ask.endpoint == "chat"
    head: dict[str, Any] = {
        "id": response_id,
        "object": "chat.completion.chunk" if chat else "text_completion",
        "created": int(time.time()),
        "model": ask.model,
    }
    if chat:
        for index in range(len(choices)):
            delta = {"role": "assistant", "content": ""}
            first = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
            yield None, event({**head, "choices": [first]})
    for at in range(max(len(choice.generated) for choice in choices)):
        for index, choice in enumerate(choices):
            part = _part(ask, index, choice, at)
            if part is not None:
                yield at, event({**head, "choices": [part]})
    for index, choice in enumerate(choices):
        end: dict[str, Any] = {"index": index, "delta": {"content": ""}} if chat else {"index": index, "text": ""}
        if choice.hidden:
            end["delta"] = {}
        end |= {"logprobs": None, "finish_reason": choice.finish_reason, "stop_reason": choice.stop_reason}
        yield None, event({**head, "choices": [end]})
    if ask.include_usage:
        yield None, event({**head, "choices": [], "usage": used})


def _part(ask: Ask, index: int, choice: Choice, at: int) -> dict[str, Any] | None:
    """The choice object of one token, or None when this choice has ended."""
    if at >= len(choice.generated):
        return None
    piece = choice.generated[at]
    part: dict[str, Any] = {"index": index}
    if at < len(choice.reasoning):
        part["delta"] = {"reasoning": piece}
    else:
        part.update({"delta": {"content": piece}} if ask.endpoint == "chat" else {"text": piece})
    part["logprobs"] = logprobs(ask, choice, at, at + 1)
    if ask.return_token_ids:
        part["token_ids"] = [tokens.token_id(piece)]
    part["finish_reason"] = None
    if ask.endpoint == "completions":
        part["stop_reason"] = None
    return part
