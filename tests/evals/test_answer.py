"""Whatever a server sends becomes part of an answer or one error."""

from __future__ import annotations

from typing import Any, get_args

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evals.answer import MAX_ID, Answer, BadAnswer, error_from
from evals.records import ErrorClass, ErrorLeg

KEYS = st.sampled_from(
    ["choices", "text", "delta", "message", "content", "reasoning", "finish_reason", "usage", "error", "token_ids",
     "logprobs", "token_logprobs", "logprob", "prompt_tokens", "prompt_tokens_details", "cached_tokens", "leg", "class"]
)  # fmt: skip
JSON: Any = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 2**60) | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
)
CHOICES = st.builds(lambda choice: {"choices": [choice]}, JSON)
BODIES = st.one_of(st.binary(max_size=40), st.one_of(JSON, CHOICES).map(orjson.dumps))


@given(st.lists(BODIES, max_size=4), st.booleans())
def test_anything_is_an_answer_or_one_error(bodies: list[bytes], streamed: bool) -> None:
    answer = Answer("proxy")
    try:
        for n, body in enumerate(bodies):
            if streamed:
                answer.add_event(body, float(n))
            else:
                answer.add_body(body)
        answer.check(streamed)
    except BadAnswer as bad:
        assert bad.error.leg in get_args(ErrorLeg)
        assert bad.error.error_class in get_args(ErrorClass)
        assert bad.error.message and "\n" not in bad.error.message
    else:
        assert answer.text
    fields = (answer.text, answer.reasoning, answer.token_ids, answer.logprobs, answer.finish_reason)
    orjson.dumps([fields, answer.prompt_tokens, answer.completion_tokens, answer.cached_tokens, answer.response_id])


@given(JSON)
def test_any_error_object_is_one_line(value: Any) -> None:
    error = error_from(value, "decode", "http_status", "Bad Gateway")
    assert error.leg in get_args(ErrorLeg) and error.error_class in get_args(ErrorClass)
    assert error.message and "\n" not in error.message


def test_an_answer_has_the_first_id_that_it_gives_itself() -> None:
    answer = Answer("decode")
    for named in (None, 7, "cmpl-a", "cmpl-b"):
        answer.add_event(orjson.dumps({"id": named, "choices": []}), 1.0)
    assert answer.response_id == "cmpl-a"
    whole = Answer("decode")
    whole.add_body(orjson.dumps({"id": "x" * 2000, "choices": [{"text": "a"}]}))
    assert whole.response_id == "x" * MAX_ID
    nameless = Answer("decode")
    nameless.add_body(orjson.dumps({"choices": [{"text": "a"}]}))
    assert nameless.response_id is None


def test_gaps_are_between_chunks_with_text() -> None:
    answer = Answer("decode")
    for at, text in ((1.0, ""), (2.0, "a"), (2.5, ""), (3.0, "b"), (3.25, "c"), (4.0, "")):
        answer.add_event(orjson.dumps({"choices": [{"text": text}]}), at)
    assert (answer.first_text, answer.gaps, answer.text) == (2.0, [1.0, 0.25], "abc")


def test_reasoning_counts_as_the_first_token() -> None:
    answer = Answer("decode")
    answer.add_event(orjson.dumps({"choices": [{"delta": {"reasoning_content": "r"}}]}), 1.0)
    answer.add_event(orjson.dumps({"choices": [{"delta": {"content": "c"}}]}), 2.0)
    assert (answer.first_text, answer.text, answer.reasoning) == (1.0, "c", "r")


def test_logprobs_of_both_endpoints() -> None:
    for logprobs in ({"token_logprobs": [-0.5, -1.0]}, {"content": [{"logprob": -0.5}, {"logprob": -1.0}]}):
        answer = Answer("decode")
        answer.add_event(orjson.dumps({"choices": [{"text": "a", "logprobs": logprobs}]}), 1.0)
        assert answer.logprobs == (-0.5, -1.0)


@pytest.mark.parametrize("ids", ["abc", [None], {"a": 1}, 5])
def test_token_ids_are_numbers(ids: Any) -> None:
    with pytest.raises(BadAnswer):
        Answer("decode").add_event(orjson.dumps({"choices": [{"text": "a", "token_ids": ids}]}), 1.0)


def test_reasoning_cut_by_length_is_an_answer_without_text_and_no_fault() -> None:
    answer = Answer("decode")
    answer.add_body(
        orjson.dumps({"choices": [{"message": {"content": None, "reasoning": "r"}, "finish_reason": "length"}]})
    )
    answer.check(streamed=False)
    assert (answer.text, answer.reasoning, answer.finish_reason) == ("", "r", "length")


def test_reasoning_that_came_to_an_end_without_an_answer_is_empty() -> None:
    answer = Answer("decode")
    answer.add_body(
        orjson.dumps({"choices": [{"message": {"content": None, "reasoning": "r"}, "finish_reason": "stop"}]})
    )
    with pytest.raises(BadAnswer) as refused:
        answer.check(streamed=False)
    assert refused.value.error.error_class == "empty"


def completion_event(text: str, ids: list[int], values: list[Any], finish: str | None = None) -> bytes:
    """A chunk of vLLM 0.32's completions with return_token_ids and logprobs, as many tokens as it held back."""
    logprobs = {
        "text_offset": [0] * len(ids),
        "token_logprobs": values,
        "tokens": ["t"] * len(ids),
        "top_logprobs": [{"t": value} for value in values],
    }
    return orjson.dumps(
        {"choices": [{"index": 0, "text": text, "logprobs": logprobs, "finish_reason": finish, "token_ids": ids}]}
    )


def chat_event(text: str, ids: list[int], values: list[Any], finish: str | None = None) -> bytes:
    """A chunk of vLLM 0.32's chat; a token without a logprob is sent without the field."""
    content = [{"token": "t", "bytes": [116]} | ({} if v is None else {"logprob": v}) for v in values]
    choice = {"index": 0, "delta": {"content": text} if text else {}, "logprobs": {"content": content}}
    return orjson.dumps({"choices": [choice | {"finish_reason": finish, "token_ids": ids}]})


def whole(event: bytes) -> bytes:
    """The body of an answer that is not streamed, of one chunk with all its tokens."""
    data = orjson.loads(event)
    for choice in data["choices"]:
        if "delta" in choice:
            choice["message"] = {"role": "assistant", "content": None, **choice.pop("delta")}
    return orjson.dumps(data)


EVENTS = pytest.mark.parametrize("event", [completion_event, chat_event])


@EVENTS
def test_ids_and_logprobs_go_on_where_text_is_held_back_or_cut(event: Any) -> None:
    """Chunks hold no, one or several tokens; the tokens of a stop string are in the ids and not in the text."""
    answer = Answer("decode")
    for n, data in enumerate(
        [
            event("", [5], [-0.1]),
            event(" 3 +", [6, 7], [-0.2, -0.3]),
            event(" 4", [], []),
            event("", [8, 9, 10], [-0.4, -0.5, -0.6], "stop"),
        ]
    ):
        answer.add_event(data, float(n))
    assert answer.text == " 3 + 4"
    assert answer.token_ids == (5, 6, 7, 8, 9, 10)
    assert answer.logprobs == (-0.1, -0.2, -0.3, -0.4, -0.5, -0.6)
    body = Answer("decode")
    body.add_body(whole(event(" 3 + 4", [5, 6, 7, 8, 9, 10], [-0.1, -0.2, -0.3, -0.4, -0.5, -0.6], "stop")))
    assert (body.text, body.token_ids, body.logprobs) == (answer.text, answer.token_ids, answer.logprobs)


@EVENTS
@pytest.mark.parametrize("at", [0, 1, 2])
def test_logprobs_with_one_left_out_are_none_and_the_answer_stands(event: Any, at: int) -> None:
    """NaN, which damage can bring, is null in a completion; the rest would stand beside the wrong tokens."""
    values = [-0.1, -0.2, -0.3]
    answer = Answer("decode")
    for n, value in enumerate(values):
        answer.add_event(event("a", [n], [None if n == at else value]), float(n))
    assert (answer.text, answer.token_ids, answer.logprobs) == ("aaa", (0, 1, 2), None)
