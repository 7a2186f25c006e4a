"""The stream scanner: what it lets through, and what it notices, however the stream is cut into chunks."""

from __future__ import annotations

import json
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from proxy.stream import StreamScanner

DONE = b"data: [DONE]\n\n"
TEXTS = st.lists(
    st.text(max_size=12) | st.sampled_from(['"error"', "data: [DONE]", '{"error": 1}', "\n\ndata: [DONE]\n\n"]),
    max_size=6,
)


def event(text: str) -> bytes:
    return b"data: " + json.dumps({"choices": [{"text": text}]}).encode() + b"\n\n"


def scan(stream: bytes, cuts: list[int]) -> tuple[StreamScanner, bytes]:
    places = sorted({0, len(stream), *(c % (len(stream) + 1) for c in cuts)})
    scanner = StreamScanner()
    out = b"".join(scanner.feed(stream[a:b]) for a, b in pairwise(places))
    return scanner, out + scanner.close()


@given(TEXTS, st.lists(st.integers(0, 10_000), max_size=10))
def test_a_whole_stream_passes_unchanged(texts: list[str], cuts: list[int]) -> None:
    stream = b"".join(map(event, texts)) + DONE
    scanner, out = scan(stream, cuts)
    assert out == stream and scanner.done and scanner.error is None


@given(TEXTS, st.lists(st.integers(0, 10_000), max_size=10), st.integers(0, 10_000))
def test_a_cut_stream_is_noticed_and_shows_no_half_line(texts: list[str], cuts: list[int], end: int) -> None:
    stream = b"".join(map(event, texts))
    stream = stream[: end % (len(stream) + 1)]
    scanner, out = scan(stream, cuts)
    assert not scanner.done and scanner.error is None
    assert stream.startswith(out) and (not out or out.endswith(b"\n"))
    assert (out + scanner.break_event()).endswith(b"\n\n") or not out


@given(TEXTS, TEXTS, st.lists(st.integers(0, 10_000), max_size=10), st.booleans())
def test_an_error_event_is_noticed_wherever_it_is_cut(
    before: list[str], after: list[str], cuts: list[int], done: bool
) -> None:
    error = b'data: {"error": {"message": "KV load failed", "code": 500}}\n\n'
    stream = b"".join(map(event, before)) + error + b"".join(map(event, after)) + (DONE if done else b"")
    scanner, out = scan(stream, cuts)
    assert out == stream and scanner.error == "KV load failed" and scanner.done is done


def test_older_builds_write_errors_flat() -> None:
    scanner, _ = scan(b'data: {"object":"error","message":"no","code":400}\n\n', [])
    assert scanner.error == "no"


def test_an_end_mark_without_its_line_break_counts() -> None:
    scanner, out = scan(event("a") + b"data: [DONE]", [])
    assert scanner.done and out.endswith(b"data: [DONE]")
