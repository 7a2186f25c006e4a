"""GSM8K-shaped word problems and codes to repeat, made from a seed. Pure.

A problem belongs to the split that a hash of its question names, so that no question of the test
split can occur in training, whatever seed either was drawn with. About one question in ten is held out.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

Split = Literal["train", "test"]

NAMES = [
    "Ann",
    "Ben",
    "Carla",
    "Dev",
    "Ella",
    "Finn",
    "Gita",
    "Hugo",
    "Ines",
    "Jack",
    "Kira",
    "Liam",
    "Mona",
    "Noah",
    "Olga",
    "Paul",
    "Quinn",
    "Rosa",
    "Sam",
    "Tara",
]
THINGS = ["apples", "books", "coins", "stamps", "shells", "cards", "pencils", "marbles", "stickers", "buttons"]
HELD_OUT_BELOW = 26
"""A question whose hash starts with a byte below this is held out: 26 of 256."""


@dataclass(frozen=True)
class Problem:
    """One word problem: the question, the worked steps without the last full stop, the answer."""

    question: str
    steps: str
    answer: int

    @property
    def solution(self) -> str:
        """The worked answer in GSM8K's own shape, as the model is to write it."""
        return f"{self.steps}.\n#### {self.answer}"


@dataclass(frozen=True)
class Code:
    """A code that a prompt states once and asks for later; digits are apart so that each is a token."""

    name: str
    digits: str

    @property
    def statement(self) -> str:
        return f"The code of {self.name} is {' '.join(self.digits)}."

    @property
    def question(self) -> str:
        return f"What is the code of {self.name}?"

    @property
    def solution(self) -> str:
        return f"{self.statement}\n#### {self.digits}"


def split_of(question: str) -> Split:
    """The split a question belongs to, by the first byte of its SHA-256."""
    return "test" if hashlib.sha256(question.encode()).digest()[0] < HELD_OUT_BELOW else "train"


def shot(question: str, solution: str) -> str:
    """One worked example of a few-shot prompt."""
    return f"Question: {question}\nAnswer: {solution}\n\n"


def ask(question: str) -> str:
    """The end of a few-shot prompt."""
    return f"Question: {question}\nAnswer:"


def draw(rng: random.Random) -> Problem:
    """Draw a problem of one to three steps from either split."""
    kind = rng.choice((_buys, _gives, _bags, _more, _finds_loses, _bags_gives, _together, _boxes_and_loose, _three))
    return kind(rng, rng.choice(NAMES), rng.choice(THINGS))


def problems(split: Split, seed: int) -> Iterator[Problem]:
    """Problems of one split without end, in the order the seed gives; a question can come again."""
    rng = random.Random(seed)
    while True:
        problem = draw(rng)
        if split_of(problem.question) == split:
            yield problem


def distinct(split: Split, seed: int, count: int) -> list[Problem]:
    """The first `count` problems of a split that all ask something different."""
    seen: dict[str, Problem] = {}
    for problem in problems(split, seed):
        seen.setdefault(problem.question, problem)
        if len(seen) == count:
            break
    return list(seen.values())


def draw_code(rng: random.Random, name: str, digits: int, distinct_digits: bool = True) -> Code:
    """Draw a code; its first digit is not 0, so that it is the same as text and as a number.

    With distinct digits (at most 10) each digit says which one follows it.
    """
    first = rng.choice("123456789")
    if not distinct_digits:
        return Code(name, first + "".join(rng.choice("0123456789") for _ in range(digits - 1)))
    return Code(name, first + "".join(rng.sample([d for d in "0123456789" if d != first], k=digits - 1)))


def _buys(r: random.Random, n: str, t: str) -> Problem:
    a, b = r.randint(2, 60), r.randint(2, 60)
    return Problem(f"{n} has {a} {t} and buys {b} more. How many {t} does {n} have now?", f"{a} + {b} = {a + b}", a + b)


def _gives(r: random.Random, n: str, t: str) -> Problem:
    a = r.randint(12, 90)
    b = r.randint(2, a - 1)
    return Problem(f"{n} had {a} {t} and gave away {b}. How many {t} are left?", f"{a} - {b} = {a - b}", a - b)


def _bags(r: random.Random, n: str, t: str) -> Problem:
    a, b = r.randint(2, 9), r.randint(2, 9)
    return Problem(f"{n} fills {a} bags with {b} {t} each. How many {t} is that?", f"{a} * {b} = {a * b}", a * b)


def _more(r: random.Random, n: str, t: str) -> Problem:
    m = r.choice([other for other in NAMES if other != n])
    a, b = r.randint(2, 40), r.randint(2, 40)
    return Problem(
        f"{n} has {a} {t}. {m} has {b} more than {n}. How many {t} does {m} have?", f"{a} + {b} = {a + b}", a + b
    )


def _finds_loses(r: random.Random, n: str, t: str) -> Problem:
    a, b = r.randint(5, 40), r.randint(2, 30)
    c = r.randint(1, min(a + b - 1, 30))
    return Problem(
        f"{n} has {a} {t}, finds {b} more and loses {c}. How many {t} does {n} have now?",
        f"{a} + {b} = {a + b}. {a + b} - {c} = {a + b - c}",
        a + b - c,
    )


def _bags_gives(r: random.Random, n: str, t: str) -> Problem:
    a, b = r.randint(2, 9), r.randint(2, 9)
    c = r.randint(1, a * b - 1)
    return Problem(
        f"{n} fills {a} bags with {b} {t} each and then gives away {c}. How many {t} does {n} keep?",
        f"{a} * {b} = {a * b}. {a * b} - {c} = {a * b - c}",
        a * b - c,
    )


def _together(r: random.Random, n: str, t: str) -> Problem:
    m = r.choice([other for other in NAMES if other != n])
    a, b = r.randint(2, 30), r.randint(2, 20)
    return Problem(
        f"{n} has {a} {t}. {m} has {b} more than {n}. How many {t} do they have together?",
        f"{a} + {b} = {a + b}. {a} + {a + b} = {2 * a + b}",
        2 * a + b,
    )


def _boxes_and_loose(r: random.Random, n: str, t: str) -> Problem:
    a, b, c = r.randint(2, 9), r.randint(2, 9), r.randint(2, 18)
    return Problem(
        f"{n} has {a} boxes of {b} {t} and {c} loose {t}. How many {t} does {n} have?",
        f"{a} * {b} = {a * b}. {a * b} + {c} = {a * b + c}",
        a * b + c,
    )


def _three(r: random.Random, n: str, t: str) -> Problem:
    a, b, c = r.randint(2, 9), r.randint(2, 9), r.randint(2, 18)
    d = r.randint(1, min(a * b + c - 1, 40))
    return Problem(
        f"{n} fills {a} bags with {b} {t} each, buys {c} more and then sells {d}. "
        f"How many {t} does {n} have in the end?",
        f"{a} * {b} = {a * b}. {a * b} + {c} = {a * b + c}. {a * b + c} - {d} = {a * b + c - d}",
        a * b + c - d,
    )
