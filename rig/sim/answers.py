"""What the simulated engine answers: the question a prompt ends with, its solution, and damaged ones. Pure.

Known are the word problems of `evals.tiny_hybrid.problems` (solved from their text, so any seed will do), codes that
the prompt states (its own and those of `evals.canaries`), and GSM8K's questions where a file of them is given.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from pathlib import Path

from rig.sim import tokens

_NUMBER_AFTER_MARK = re.compile(r"####\s*\$?(-?[\d,]+(?:\.\d+)?)")
_CODE_ASKED = re.compile(r"What is the code of (\w+)\?")


@dataclass(frozen=True)
class Question:
    """A question that has a known answer: `target` is its number as text, `solution` the worked answer.

    `code`: the prompt itself states the answer.
    """

    text: str
    target: str
    solution: str
    code: bool = False


@dataclass(frozen=True)
class Told:
    """An answer before any limit: `rival` is another one that was nearly as likely."""

    text: str
    damaged: bool = False
    rival: str | None = None


@dataclass(frozen=True)
class Book:
    """Solutions by question, from a file of GSM8K's shape."""

    solutions: Mapping[str, str]

    @classmethod
    def read(cls, path: Path) -> Book:
        """Read a `.jsonl` file, or `train.jsonl` and `test.jsonl` of a folder. Raises OSError, ValueError."""
        files = [path] if path.is_file() else [p for p in (path / "train.jsonl", path / "test.jsonl") if p.exists()]
        if not files:
            raise FileNotFoundError(f"{path}: neither a JSONL file nor a folder with test.jsonl")
        rows = [json.loads(line) for file in files for line in file.read_text().splitlines() if line.strip()]
        return cls({row["question"].strip(): row["answer"].strip() for row in rows})


EMPTY_BOOK = Book({})


def fraction(*parts: object) -> float:
    """A number in [0, 1) that depends on the parts alone."""
    return int.from_bytes(sha256("\x00".join(map(str, parts)).encode()).digest()[:8]) / 2**64


def asked(prompt: str) -> str:
    """The last question of a prompt: what follows the last `Question:` up to `Answer:`, else all of it."""
    _, mark, tail = prompt.rpartition("Question:")
    return (tail if mark else prompt).rpartition("\nAnswer:")[0].strip() or (tail if mark else prompt).strip()


def recognise(prompt: str, book: Book = EMPTY_BOOK) -> Question | None:
    """The known question that a prompt ends with, or None."""
    text = asked(prompt)
    names = _CODE_ASKED.findall(text)
    if names:
        return _code(prompt, text, names[-1])
    if text in book.solutions:
        return _with_mark(text, book.solutions[text])
    found = _word_problem(text)
    if found is not None or not book.solutions:
        return found
    held = max((known for known in book.solutions if known in text), key=len, default=None)
    return _with_mark(held, book.solutions[held]) if held else None


def answer_in(text: str) -> str | None:
    """The number after the first `####` without commas, or None."""
    match = _NUMBER_AFTER_MARK.search(text)
    return match[1].replace(",", "") if match else None


def is_right(question: Question, text: str) -> bool:
    """Whether a text gives the question's answer."""
    return answer_in(text) == question.target


def wrong(question: Question, salt: str) -> str:
    """The solution with another number in it: fluent, and wrong; the same for the same salt."""
    step = 1 + int(fraction("wrong", salt, question.text) * 8)
    if question.code:
        digits = "".join(str((int(digit) + step) % 10) for digit in question.target)
        other = ("1" if digits[0] == "0" else digits[0]) + digits[1:]
        return question.solution.replace(" ".join(question.target), " ".join(other)).replace(question.target, other)
    other = str(int(question.target) + step) if question.target.lstrip("-").isdigit() else str(step)
    steps, _, _ = question.solution.rpartition("####")
    return re.sub(rf"(?<![\d.,]){re.escape(question.target)}(?![\d])", other, steps) + f"#### {other}"


def told(question: Question, accuracy: float, noise: float, seed: int, asking: object) -> Told:
    """The answer of an undamaged engine: right for a share `accuracy` of the questions; codes are always right.

    Two askings differ for a share `noise` of the questions: twice as many are near ties, between the usual answer and
    its opposite, and `asking` tosses the coin.
    """
    if question.code:
        return Told(question.solution)
    both = question.solution, wrong(question, f"accuracy{seed}")
    right = fraction("accuracy", seed, question.text) < accuracy
    usual, rival = both if right else both[::-1]
    if not noise or fraction("tie", seed, question.text) >= 2 * noise:
        return Told(usual)
    return Told(usual, rival=rival) if fraction("toss", question.text, asking) < 0.5 else Told(rival, rival=usual)


def donor(question: Question | None, others: Sequence[tuple[str, Question]]) -> tuple[str, Question] | None:
    """Whose answer another request gets in `question`'s place: the first of `others` with another answer.

    `others` are request ids and questions. A code gets another code where there is one, so that it shows whose it is.
    """
    told_apart = [other for other in others if question is None or other[1].target != question.target]
    codes = [other for other in told_apart if other[1].code] if question and question.code else []
    return next(iter([*codes, *told_apart]), None)


def unknown(prompt: str, salt: str, least: int = 12) -> str:
    """Text without meaning for a prompt nobody knows, the same for the same prompt and salt."""
    key = sha256(f"{salt}\x00{prompt}".encode()).hexdigest()
    return tokens.babble(key, least + int(fraction(key) * 20)).strip() + "."


def _code(prompt: str, text: str, name: str) -> Question | None:
    stated = re.findall(rf"The code of {name} is (\d(?: ?\d)*)\.", prompt)
    if not stated:
        return None
    digits = stated[-1].replace(" ", "")
    return Question(text, digits, f"The code of {name} is {stated[-1]}.\n#### {digits}", code=True)


def _with_mark(question: str, solution: str) -> Question | None:
    target = answer_in(solution)
    return Question(question, target, solution) if target else None


_Solver = Callable[[int, int, int, int], tuple[str, int]]
_PROBLEMS: tuple[tuple[re.Pattern[str], _Solver], ...] = tuple(
    (re.compile(pattern.replace("NAME", r"[A-Z]\w*").replace("THINGS", r"\w+").replace("#", r"(\d+)")), solver)
    for pattern, solver in (
        (
            r"NAME has # THINGS and buys # more\. How many THINGS does NAME have now\?",
            lambda a, b, c, d: (f"{a} + {b} = {a + b}", a + b),
        ),
        (
            r"NAME had # THINGS and gave away #\. How many THINGS are left\?",
            lambda a, b, c, d: (f"{a} - {b} = {a - b}", a - b),
        ),
        (
            r"NAME fills # bags with # THINGS each\. How many THINGS is that\?",
            lambda a, b, c, d: (f"{a} * {b} = {a * b}", a * b),
        ),
        (
            r"NAME has # THINGS\. NAME has # more than NAME\. How many THINGS does NAME have\?",
            lambda a, b, c, d: (f"{a} + {b} = {a + b}", a + b),
        ),
        (
            r"NAME has # THINGS, finds # more and loses #\. How many THINGS does NAME have now\?",
            lambda a, b, c, d: (f"{a} + {b} = {a + b}. {a + b} - {c} = {a + b - c}", a + b - c),
        ),
        (
            r"NAME fills # bags with # THINGS each and then gives away #\. How many THINGS does NAME keep\?",
            lambda a, b, c, d: (f"{a} * {b} = {a * b}. {a * b} - {c} = {a * b - c}", a * b - c),
        ),
        (
            r"NAME has # THINGS\. NAME has # more than NAME\. How many THINGS do they have together\?",
            lambda a, b, c, d: (f"{a} + {b} = {a + b}. {a} + {a + b} = {2 * a + b}", 2 * a + b),
        ),
        (
            r"NAME has # boxes of # THINGS and # loose THINGS\. How many THINGS does NAME have\?",
            lambda a, b, c, d: (f"{a} * {b} = {a * b}. {a * b} + {c} = {a * b + c}", a * b + c),
        ),
        (
            r"NAME fills # bags with # THINGS each, buys # more and then sells #\. "
            r"How many THINGS does NAME have in the end\?",
            lambda a, b, c, d: (
                f"{a} * {b} = {a * b}. {a * b} + {c} = {a * b + c}. {a * b + c} - {d} = {a * b + c - d}",
                a * b + c - d,
            ),
        ),
    )
)


@lru_cache(maxsize=4096)
def _word_problem(text: str) -> Question | None:
    for pattern, solver in _PROBLEMS:
        match = pattern.search(text)
        if match:
            a, b, c, d = ([int(group) for group in match.groups()] + [0, 0, 0, 0])[:4]
            steps, answer = solver(a, b, c, d)
            return Question(match[0], str(answer), f"{steps}.\n#### {answer}")
    return None
