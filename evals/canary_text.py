"""The text around a canary's code for models that were not trained on codes. Pure.

Worked examples in GSM8K's few-shot shape state a code and repeat it, then comes the canary's own among filler.
"""

from __future__ import annotations

import random

from evals.tiny_hybrid.problems import ask, shot

FILLER_WORDS = range(601)
"""Words between the examples and the question: prompts of 900 to 4,000 characters, as GSM8K's with a few shots are."""

EXAMPLE_CODES = ("07318264", "04952871", "09186347", "02647518", "05829136", "08473592")
"""They begin with 0, which no canary's code does."""

EXAMPLES = 3

_PLACES = (
    "Alder",
    "Birch",
    "Cedar",
    "Dahlia",
    "Elm",
    "Fern",
    "Ginger",
    "Hazel",
    "Iris",
    "Juniper",
    "Kale",
    "Laurel",
    "Maple",
    "Nettle",
    "Oak",
    "Poplar",
    "Quince",
    "Rowan",
    "Sage",
    "Thyme",
)
_WHEN = (
    "In the morning",
    "After lunch",
    "Before the rain",
    "Late in spring",
    "On market day",
    "At the end of the week",
    "While the kettle boiled",
    "When the bell rang",
    "Without any hurry",
    "Early in winter",
)
_WHO = (
    "the gardener",
    "the old ferryman",
    "a tired teacher",
    "the baker",
    "my neighbour",
    "the youngest cousin",
    "a travelling painter",
    "the night porter",
    "the clock maker",
    "a careful driver",
)
_DID = (
    "carried the ladder",
    "mended a wooden chair",
    "counted the lanterns",
    "painted the long fence",
    "moved the empty crates",
    "swept the narrow stairs",
    "folded the grey blankets",
    "washed the tall windows",
    "stacked the firewood",
    "sorted the letters",
)
_WHERE = (
    "behind the barn",
    "near the harbour",
    "under the stone bridge",
    "beside the mill",
    "in the upper hall",
    "across the yard",
    "along the canal",
    "by the kitchen door",
    "outside the library",
    "on the north terrace",
)


def canary_text(rng: random.Random, code: str, words: int, late: float) -> tuple[str, str, int]:
    """Prompt, solution and place of the code. `late`, 0 to 1, says how much of about `words` words comes before it."""
    own, *places = rng.sample(_PLACES, k=1 + EXAMPLES)
    examples = ""
    for place, example in zip(places, rng.sample(EXAMPLE_CODES, k=EXAMPLES), strict=True):
        told = [_sentence(rng), _sentence(rng)]
        told.insert(rng.randrange(3), _statement(place, example))
        examples += shot(f"{' '.join(told)} {_question(place)}", _solution(place, example))
    told = sentences(rng, words)
    told.insert(int(late * (len(told) + 1)), _statement(own, code))
    prompt = examples + ask(f"{' '.join(told)} {_question(own)}")
    return prompt, _solution(own, code), prompt.index(code)


def sentences(rng: random.Random, words: int) -> list[str]:
    """Sentences that mean nothing in particular, of `words` words together, or a few more."""
    told: list[str] = []
    count = 0
    while count < words:
        told.append(_sentence(rng))
        count += told[-1].count(" ") + 1
    return told


def _sentence(rng: random.Random) -> str:
    return f"{rng.choice(_WHEN)} {rng.choice(_WHO)} {rng.choice(_DID)} {rng.choice(_WHERE)}."


def _statement(place: str, code: str) -> str:
    return f"The code of {place} is {code}."


def _question(place: str) -> str:
    return f"What is the code of {place}?"


def _solution(place: str, code: str) -> str:
    return f"{_statement(place, code)}\n#### {code}"
