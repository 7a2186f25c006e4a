from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evals.sse import SseParser


def parse(*chunks: bytes) -> list[bytes]:
    parser = SseParser()
    return [data for chunk in chunks for data in parser.feed(chunk)]


@pytest.mark.parametrize(
    ("stream", "events"),
    [
        (b"data: a\n\ndata: b\n\n", [b"a", b"b"]),
        (b"data:a\n\n", [b"a"]),
        (b"data:  a\n\n", [b" a"]),
        (b"data\n\n", [b""]),
        (b"data: a\ndata: b\n\n", [b"a\nb"]),
        (b": ping\n\ndata: a\n\n", [b"a"]),
        (b": ping\ndata: a\n\n", [b"a"]),
        (b"event: error\nid: 3\nretry: 9\ndata: a\n\n", [b"a"]),
        (b"data: a\r\n\r\ndata: b\r\n\r\n", [b"a", b"b"]),
        (b"data: a\r\rdata: b\r\r", [b"a", b"b"]),
        (b"data: a\r\n\ndata: b\n\r\n", [b"a", b"b"]),
        (b"\n\n\ndata: a\n\n\n\ndata: b\n\n", [b"a", b"b"]),
        (b"\xef\xbb\xbfdata: a\n\n", [b"a"]),
        (b"datax: a\n\n", []),
        (b"data: a\n", []),
        (b"data: a", []),
        (b"data: {\"text\": \"\\n\\n\"}\n\n", [b"{\"text\": \"\\n\\n\"}"]),
    ],
)  # fmt: skip
def test_the_same_events_however_the_stream_is_cut(stream: bytes, events: list[bytes]) -> None:
    assert parse(stream) == events
    if not stream.startswith(b"\xef"):
        assert parse(*(bytes([byte]) for byte in stream)) == events
    for cut in range(3, len(stream)):
        assert parse(stream[:cut], stream[cut:]) == events


LINE = st.sampled_from([b"data: x", b"data:", b": c", b"event: e", b"data: \xc3\xa9", b""])
END = st.sampled_from([b"\n", b"\r\n", b"\r"])


@given(st.lists(st.tuples(LINE, END)), st.lists(st.integers(0, 60)))
def test_cuts_change_nothing(lines: list[tuple[bytes, bytes]], cuts: list[int]) -> None:
    stream = b"".join(line + end for line, end in lines)
    places = sorted({0, len(stream), *(c for c in cuts if c < len(stream))})
    assert parse(*(stream[a:b] for a, b in itertools.pairwise(places))) == parse(stream)
