"""What the chunks or the body of one answer add up to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast, get_args

import orjson

from evals.records import ErrorClass, ErrorLeg, RequestError

LONGEST_MESSAGE = 500
MAX_ID = 300
"""Longer ids of answers are cut to so many characters: vllm-router's hold two addresses."""

_LEGS = frozenset(get_args(ErrorLeg))
_CLASSES = frozenset(get_args(ErrorClass))


class BadAnswer(Exception):
    """An answer that cannot be used; `error` says why."""

    def __init__(self, error: RequestError) -> None:
        self.error = error
        super().__init__(error.message)


class Answer:
    """Collects one answer of either endpoint, streamed or whole. Times are what the caller's clock gives.

    `gaps` are the times between chunks with text, in seconds. Raises BadAnswer from `add_event` and `add_body`.
    """

    __slots__ = (
        "_content",
        "_last_text",
        "_logprobs",
        "_reasoning",
        "_token_ids",
        "cached_tokens",
        "completion_tokens",
        "done",
        "finish_reason",
        "first_text",
        "gaps",
        "leg",
        "prompt_tokens",
        "response_id",
    )

    def __init__(self, default_leg: ErrorLeg) -> None:
        self.leg = default_leg
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self._token_ids: list[int] = []
        self._logprobs: list[float | None] = []
        self._last_text = 0.0
        self.first_text: float | None = None
        self.gaps: list[float] = []
        self.finish_reason: str | None = None
        self.prompt_tokens: int | None = None
        self.completion_tokens: int | None = None
        self.cached_tokens: int | None = None
        self.response_id: str | None = None
        self.done = False

    @property
    def ended(self) -> bool:
        """Whether the stream's end mark was seen."""
        return self.done or self.finish_reason is not None

    @property
    def text(self) -> str | None:
        """What was answered; empty where the limit of tokens was reached within the reasoning, None without any."""
        return "".join(self._content) or ("" if self._cut_in_reasoning() else None)

    @property
    def reasoning(self) -> str | None:
        return "".join(self._reasoning) or None

    @property
    def token_ids(self) -> tuple[int, ...] | None:
        return tuple(self._token_ids) or None

    @property
    def logprobs(self) -> tuple[float, ...] | None:
        """One a token; None where the server left any out: they would be those of other tokens."""
        known = tuple(value for value in self._logprobs if value is not None)
        return known if known and len(known) == len(self._logprobs) else None

    def add_event(self, data: bytes, now: float) -> None:
        """Take in the data of one event that arrived at `now`."""
        if data == b"[DONE]":
            self.done = True
            return
        chunk = self._parsed(data, "an event of the stream is not JSON", "stream_error")
        if self.response_id is None:
            self._add_id(chunk)
        choices = chunk.get("choices")
        if choices:
            try:
                if self._add_choice(choices[0], "delta"):
                    if self.first_text is None:
                        self.first_text = now
                    else:
                        self.gaps.append(now - self._last_text)
                    self._last_text = now
            except (TypeError, AttributeError, LookupError):
                raise self._bad("an event of the stream has choices of an unknown shape", data) from None
        if usage := chunk.get("usage"):
            self._add_usage(usage)
        elif choices is None:
            raise self._bad("an event of the stream has neither choices nor usage", data)

    def add_body(self, body: bytes) -> None:
        """Take in the whole body of an answer that was not streamed."""
        data = self._parsed(body, "the answer is not JSON", "bad_response")
        self._add_id(data)
        try:
            self._add_choice(data["choices"][0], "message")
        except (TypeError, AttributeError, LookupError):
            raise self._bad("the answer has no choices of a known shape", body) from None
        if usage := data.get("usage"):
            self._add_usage(usage)

    def no_events(self, first: bytes, kind: str) -> BadAnswer:
        """What is said of an answer that begins with `first`, of content type `kind`, where events were to come."""
        return self._bad(f"asked for a stream of events, got {kind or 'a body without a type'}", first)

    def check(self, streamed: bool) -> None:
        """Raises BadAnswer for a stream without its end mark and for an answer without text."""
        if streamed and not self.ended:
            raise BadAnswer(RequestError(self.leg, "stream_cut", "the stream ended without its end mark"))
        if not any(self._content) and not self._cut_in_reasoning():
            where = "; there is text in its reasoning only" if any(self._reasoning) else ""
            raise BadAnswer(RequestError(self.leg, "empty", f"an answer without text{where}"))

    def _cut_in_reasoning(self) -> bool:
        return self.finish_reason == "length" and any(self._reasoning)

    def _add_choice(self, choice: Mapping[str, Any], part: str) -> bool:
        """Whether the choice brought text or reasoning."""
        grew = False
        if (message := choice.get(part)) is not None:
            text = message.get("content")
            if reasoning := message.get("reasoning") or message.get("reasoning_content"):
                self._reasoning.append(_text(reasoning))
                grew = True
        else:
            text = choice.get("text")
        if text:
            self._content.append(_text(text))
            grew = True
        if reason := choice.get("finish_reason"):
            self.finish_reason = _text(reason)
        if ids := choice.get("token_ids"):
            self._token_ids += _numbers(ids)
        if logprobs := choice.get("logprobs"):
            # Completions give a list, chat an object a token. One that is not a number is null there and absent here.
            found = logprobs.get("token_logprobs") or [t.get("logprob") for t in logprobs.get("content") or ()]
            _numbers([value for value in found if value is not None])
            self._logprobs += found
        return grew

    def _add_id(self, data: Mapping[str, Any]) -> None:
        named = data.get("id")
        self.response_id = named[:MAX_ID] if isinstance(named, str) else None

    def _add_usage(self, usage: Any) -> None:
        if not isinstance(usage, dict):
            raise self._bad("usage is not an object", b"")
        self.prompt_tokens = _count(usage.get("prompt_tokens"))
        self.completion_tokens = _count(usage.get("completion_tokens"))
        details = usage.get("prompt_tokens_details")
        self.cached_tokens = _count(details.get("cached_tokens")) if isinstance(details, dict) else None

    def _parsed(self, data: bytes, problem: str, error_class: ErrorClass) -> dict[str, Any]:
        try:
            parsed = orjson.loads(data)
        except orjson.JSONDecodeError:
            raise self._bad(problem, data) from None
        if not isinstance(parsed, dict):
            raise self._bad(problem + " object", data)
        if parsed.get("error") or parsed.get("object") == "error":
            raise BadAnswer(error_from(parsed, self.leg, error_class))
        return parsed

    def _bad(self, problem: str, data: bytes) -> BadAnswer:
        shown = f": {one_line(data[:200].decode(errors='replace'))}" if data else ""
        return BadAnswer(RequestError(self.leg, "bad_response", problem + shown))


def error_from(parsed: Any, leg: str | None, error_class: str | None, fallback: str = "") -> RequestError:
    """The error that a JSON object states; its own `leg` and `class` win over those given.

    Takes `{"error": {"message"}}`, `{"error": "text"}`, `{"message"}`, `{"detail"}`; else the fallback is the message.
    """
    inner = parsed.get("error") if isinstance(parsed, dict) else None
    inner = inner if inner else parsed
    message: Any = inner
    if isinstance(inner, dict):
        leg = _known(inner.get("leg"), _LEGS) or leg
        error_class = _known(inner.get("class"), _CLASSES) or error_class
        message = inner.get("message") or inner.get("detail")
    if message and not isinstance(message, str):
        message = orjson.dumps(message).decode()
    return RequestError(
        cast(ErrorLeg, leg), cast(ErrorClass, error_class), one_line(message or fallback or "no reason given")
    )


def known_leg(value: str | None, default: ErrorLeg) -> ErrorLeg:
    """A leg that a header names, if it is one."""
    return cast(ErrorLeg, _known(value, _LEGS) or default)


def known_class(value: str | None, default: ErrorClass) -> ErrorClass:
    """An error class that a header names, if it is one."""
    return cast(ErrorClass, _known(value, _CLASSES) or default)


def one_line(text: str) -> str:
    """Text without line breaks, and not too long for a record."""
    line = " ".join(text.split())
    return line if len(line) <= LONGEST_MESSAGE else line[: LONGEST_MESSAGE - 1] + "…"


def _known(value: Any, names: frozenset[str]) -> str | None:
    return value if isinstance(value, str) and value in names else None


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("not a text")
    return value


def _numbers(values: Any) -> list[Any]:
    if not isinstance(values, list) or not all(isinstance(value, (int, float)) for value in values):
        raise TypeError("not numbers")
    return values


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
