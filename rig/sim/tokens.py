"""A small deterministic tokenizer, and the logprobs of tokens that no model computed. Pure but for a memo."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from zlib import crc32

_PIECE = re.compile(r" ?[A-Za-z]+|\d|[^A-Za-z\d]")
_WORDS: list[str] = re.findall(
    r"\w+",
    " the of to and a in is it that for was on are as with they at be this from have or by one had not but what all"
    " were when we there can an your which their said if do will each about how up out them then she many some so"
    " these would other into has more her two like him see time could no make than first been its who now people",
)
VOCABULARY = len(_WORDS)
"""How many words are known; a token of an answer may be none of them."""

_TEXT_OF: dict[int, str] = {}
_ID_OF: dict[str, int] = {}


def split(text: str) -> list[str]:
    """The tokens of a text; joined, they are the text."""
    return _PIECE.findall(text)


def token_id(piece: str) -> int:
    """A number below 2**31 for a piece, the same in every process; remembered, so that it can be read back."""
    number = _ID_OF.get(piece)
    if number is None:
        number = _ID_OF[piece] = crc32(piece.encode()) & 0x7FFFFFFF
        _TEXT_OF.setdefault(number, piece)
    return number


def text_of(ids: Sequence[int]) -> str:
    """The text of token ids; one that this process never saw reads as a word made from its number."""
    return "".join(_TEXT_OF.get(number) or f" {word(number)}" for number in ids)


def word(number: int) -> str:
    """An ordinary English word for any number."""
    return _WORDS[number % len(_WORDS)]


def babble(key: str, count: int) -> str:
    """`count` words without meaning, the same for the same key."""
    return "".join(f" {word(crc32(f'{key}/{index}'.encode()))}" for index in range(count))


def logprob(piece: str, position: int, key: str, shift: float = 0.0) -> float:
    """The logprob of an answer's token in nats, between -0.5 and 0, lower by `shift`."""
    return -0.001 - 0.499 * crc32(f"{key}/{position}/{piece}".encode()) / 2**32 - shift


def near_tie(piece: str, position: int, key: str) -> float:
    """The logprob of one of two tokens that are about equally likely: within 0.01 below ln(1/2)."""
    return math.log(0.5) + logprob(piece, position, key) / 50


def alternatives(piece: str, value: float, position: int, key: str, count: int) -> list[tuple[str, float]]:
    """The `count` likeliest tokens at a position with their logprobs, the answer's token and its `value` first.

    Fewer where the vocabulary has no more words.
    """
    found = {piece: value}
    first = crc32(f"{key}/{position}".encode())
    for number in range(first, first + len(_WORDS)):
        if len(found) >= count:
            break
        other = f" {word(number)}"
        if other not in found:
            value -= 1.0 + (number % 1000) / 1000
            found[other] = value
    return list(found.items())[:count]
