"""The reading of an answer text that comes closest to what the model meant. Pure.

Numbers are exact (`Fraction`) and have one canonical spelling, so that equal numbers are equal strings.
"""

from __future__ import annotations

import re
import unicodedata
from fractions import Fraction

LONGEST_NUMBER = 100
"""Characters; anything longer is not an answer, and Python refuses to convert much longer integers."""

_DASHES = dict.fromkeys(map(ord, "\u2212\u2010\u2011\u2012\u2013\ufe63\uff0d"), "-")
_UNSIGNED = r"(?:\d+(?:,\d{2,3})*,\d{3}(?!\d)|\d+)(?:\.\d+)?(?:[eE][+-]?\d{1,2}(?!\w))?|(?<!\.)\.\d+"
_VALUE = (
    r"(?:US|USD|EUR|GBP)?\s?[$€£¥₹]?(?P<inner>(?<=[$€£¥₹])-)?"
    rf"(?:(?:(?P<whole>\d+) {{1,2}})?(?P<above>\d+)/(?P<below>\d+)(?![\d/])|(?P<plain>{_UNSIGNED}))"
)
# Possessive, as every repeat here that could meet its like: no text makes the search slow.
_DECORATION = r"[\s*_`~≈>:\\(\[{]*+"
# An answer is sometimes worked out on its own line: only what follows the last equals sign counts then.
_WORKING = r"(?:[\d\s.,+\-*/x×÷()$%=]*=|[A-Za-z]\w*\s*=)?"

PATTERNS = {
    "invented": r"Question:|^[ \t]*+[*#]*+[ \t]*+(?:Question|Problem|Exercise|Q)[ \t]*+\d*+[*]*+[ \t]*+:",
    "marked": rf"(?<!#)####++{_DECORATION}(?:(?i:the )?(?i:final )?(?i:answer)(?i: is)?)?{_DECORATION}{_WORKING}"
    rf"{_DECORATION}(?P<outer>-\s?)?{_VALUE}",
    "heading": r"[.)][ \t]+\*{0,2}[A-Za-z]",
    "boxed": rf"\\boxed\{{{_DECORATION}{_WORKING}{_DECORATION}(?P<outer>-\s?)?{_VALUE}",
    "phrase": rf"(?i:\banswer(?: is| would be)?\b){_DECORATION}{_WORKING}{_DECORATION}(?P<outer>-)?{_VALUE}",
    "number": rf"(?:(?<![\w)\]])(?<![\d)\]] )(?P<outer>-)(?=[$€£¥₹.\d])|(?<!\w)(?<!\d\.)|(?<=USD)){_VALUE}",
}
_COMPILED = {name: re.compile(pattern, re.MULTILINE) for name, pattern in PATTERNS.items()}


def read_answer(text: str) -> str | None:
    """The canonical number that a text answers with, or None.

    In this order: the first `#### x`, the last `\\boxed{x}`, the last "answer is x", the last number; all
    of them before the first question that the model invents, and after any `</think>`.
    """
    text = own_part(_plain(text))
    marked = [m for m in _COMPILED["marked"].finditer(text) if _number(m) is not None]
    # "#### 1. First we add" is a heading if a later mark gives the answer.
    answers = [m for m in marked if not _COMPILED["heading"].match(text, m.end())]
    if marked:
        return _canonical(_number((answers or marked)[0]))
    text = re.sub(r"<<[^<>\n]*>>", "", text)
    for name in ("boxed", "phrase", "number"):
        found = [n for m in _COMPILED[name].finditer(text) if (n := _number(m)) is not None]
        if found:
            return _canonical(found[-1])
    return None


def read_target(answer_text: str) -> str | None:
    """The canonical number after the last `####` of a reference answer, or of a bare number; None if none."""
    return read_answer("#### " + answer_text.rsplit("####", 1)[-1].strip())


def same_number(one: str, other: str) -> bool:
    """Whether two canonical numbers are equal."""
    return Fraction(one) == Fraction(other)


def _plain(text: str) -> str:
    """Digits of any script as ASCII, dashes as minus, fractions and LaTeX spelled out."""
    text = text.translate(_DASHES)
    if not text.isascii():
        text = "".join(str(unicodedata.decimal(c)) if c.isdecimal() else c for c in text)
        text = re.sub(r"(?<=\d)[\u00a0\u2009\u202f](?=\d{3}(?!\d))", "", text)
        text = re.sub(r"(?<=\d)(?=[¼-¾⅐-⅞↉])", " ", text)
        text = re.sub(r"[¼-¾⅐-⅞↉]", lambda m: unicodedata.normalize("NFKC", m[0]).replace("\u2044", "/"), text)
    if "\\" in text or "{,}" in text:
        text = re.sub(r"\\[,!]", "", text.replace("{,}", ","))
        text = re.sub(r"\\([$%])", r"\1", text)
        text = re.sub(r"(?<=\d)(?=\\[dt]?frac\{)", " ", text)
        text = re.sub(r"\\[dt]?frac\{(\d+)\}\{(\d+)\}", r"\1/\2", text)
    return text


def own_part(text: str) -> str:
    """Without the thinking before the answer and without the questions invented after it."""
    if "</think>" in text:
        text = text.rsplit("</think>", 1)[1]
    elif "<think>" in text:
        text = text.split("<think>", 1)[0]
    lead = len(text) - len(text.lstrip())
    for match in _COMPILED["invented"].finditer(text):
        # A question at the very start is the one that was asked, said again.
        if match.start() > lead:
            return text[: match.start()]
    return text


def _number(match: re.Match[str]) -> Fraction | None:
    if len(match[0]) > 4 * LONGEST_NUMBER or any(len(match[g] or "") > LONGEST_NUMBER for g in _GROUPS):
        return None
    if match["plain"] is not None:
        value = Fraction(match["plain"].replace(",", ""))
    elif int(match["below"]) == 0:
        value = Fraction(int(match["whole"] or match["above"]))
    else:
        value = Fraction(int(match["above"]), int(match["below"])) + int(match["whole"] or 0)
    negative = (match["outer"] is not None) != (match["inner"] is not None)
    return -value if negative else value


_GROUPS = ("plain", "whole", "above", "below")


def _canonical(value: Fraction | None) -> str | None:
    """An integer, a terminating decimal without trailing zeros, or `p/q`."""
    if value is None or value.denominator == 1:
        return None if value is None else str(value.numerator)
    below, places = value.denominator, 0
    for prime in (2, 5):
        count = 0
        while below % prime == 0:
            below //= prime
            count += 1
        places = max(places, count)
    if below != 1:
        return f"{value.numerator}/{value.denominator}"
    digits = str(abs(value.numerator) * 10**places // value.denominator).rjust(places + 1, "0")
    return f"{'-' if value < 0 else ''}{digits[:-places]}.{digits[-places:]}"
