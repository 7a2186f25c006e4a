"""Canaries: requests whose prompt states a code of its own that the right answer repeats. Pure.

KV that is another request's, stale or blank cannot hold the code, so such an answer is wrong however weak the model
is at sums; one that holds another canary's code names where the KV came from.
"""

from __future__ import annotations

import hashlib
import itertools
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from evals.canary_text import FILLER_WORDS, canary_text
from evals.errors import BadParams
from evals.robust import own_part
from evals.shapes import Endpoint, Sample
from evals.tiny_hybrid.problems import NAMES, Code, ask, distinct, draw_code, shot

DISTANCE = 3
"""Positions in which any two codes of a list differ: an answer off by one or two digits is nobody else's code."""

MOST = 200
"""Canaries of a list; codes of six distinct digits that far apart run out at several hundred."""

ANSWER_TOKENS = 48
"""Enough for the sentence with the code and the code after `####`, each digit a token of its own."""

TINY_SHOTS = range(2, 13)
TINY_CHARACTERS = 1480
"""Of worked examples: at most 656 tokens of the tiny model, whose texts have 2.25 to 2.6 characters a token."""

_SEPARATOR = r"(?:, |[ ,.'_\u00a0\u2009\u202f-])"
_RUN = re.compile(rf"[0-9](?:{_SEPARATOR}?[0-9])*")
_T = TypeVar("_T")


@dataclass(frozen=True)
class Canary:
    """One canary. `position` is the place of the code in the prompt, 0 to 1; `params` go with the request."""

    sample: Sample
    code: str
    position: float
    params: Mapping[str, Any]


def default_count(n_questions: int) -> int:
    """Canaries for so many questions: one in 20, at least 8, at most 100, never more than the questions."""
    return min(n_questions, max(8, min(100, n_questions // 20)))


def make_canaries(
    task_name: str,
    count: int,
    salt: str,
    params: Mapping[str, Any],
    endpoint: Endpoint,
    lengths: Sequence[int] | None = None,
) -> list[Canary]:
    """The first `count` canaries of a salt; a longer list begins with the shorter.

    Codes come from (salt, index) alone: six different digits for gsm-tiny, eight digits for every other task, the
    first never 0. `lengths`, taken in turn, are worked examples before the question (gsm-tiny) or words of filler
    (other tasks); without them they vary over what the models can do, as does the place of the code.
    `params` are the task's own. Raises BadParams.
    """
    if not 0 <= count <= MOST:
        raise BadParams(f"canaries: {count} asked for; there can be 0 to {MOST}")
    tiny = task_name == "gsm-tiny"
    possible, unit = (TINY_SHOTS, "worked examples") if tiny else (FILLER_WORDS, "words")
    for length in lengths or ():
        if length not in possible:
            raise BadParams(f"canaries: a length of {length}; it must be {possible[0]} to {possible[-1]} {unit}")
    request = canary_params(params, endpoint)
    canaries = []
    for i, code in enumerate(_codes(salt, count, tiny)):
        rng = _rng(salt, i, "text")
        # Two rows of numbers that fill a square evenly from the first on (Roberts' R2): lengths and places of any
        # count are spread, and the same for every salt, so that two cells ask for equally hard ones.
        long, late = (0.5 + i * 0.7548776662466927) % 1, (0.5 + i * 0.5698402909980532) % 1
        length = lengths[i % len(lengths)] if lengths else possible[int(long * len(possible))]
        prompt, solution, at = (tiny_text if tiny else canary_text)(rng, code, length, late)
        sample = Sample(f"canary-{i:04d}", prompt, solution, "canary")
        canaries.append(Canary(sample, code, at / len(prompt), request))
    return canaries


def canary_params(params: Mapping[str, Any], endpoint: Endpoint) -> dict[str, Any]:
    """A task's request parameters for a canary: greedy, and with tokens enough for the code.

    In a chat the task's own limit stays where it is higher: a model that reasons first needs it, the others stop.
    """
    request = {name: value for name, value in params.items() if name not in ("min_tokens", "min_completion_tokens")}
    for name in ("max_tokens", "max_completion_tokens"):
        if name in request:
            request[name] = max(request[name], ANSWER_TOKENS) if endpoint == "chat" else ANSWER_TOKENS
    if endpoint == "completions":
        request["max_tokens"] = ANSWER_TOKENS
    return {**request, "temperature": 0.0}


def read_code(canary: Canary, text: str | None) -> str | None:
    """The code that an answer gives, or None: the first complete one after `####`, else the first of the answer.

    Complete means exactly as many digits as the canary's code, alone or apart by single separators.
    """
    return next(_read(text, len(canary.code)), None)


def check(
    canary: Canary, text: str | None, others: Mapping[str, str]
) -> tuple[Literal["right", "wrong", "crossed"], str | None, str | None]:
    """What an answer shows, the code it gives, and the sample whose code that is where it is crossed.

    `others` maps the codes of other canaries on the same servers to their sample ids. An answer that is not right is
    crossed where any code in it is another's; a code that is nearer to the canary's own than two codes of a list can
    be counts as the canary's own, misread.
    """
    found = list(_read(text, len(canary.code)))
    if found and found[0] == canary.code:
        return "right", canary.code, None
    for code in found:
        if code in others and _distance(code, canary.code) >= DISTANCE:
            return "crossed", code, others[code]
    return "wrong", found[0] if found else None, None


def mix(questions: Sequence[_T], canaries: Sequence[_T], seed: int) -> list[_T]:
    """All requests in one list: the canaries evenly spread, each at a seeded place in its share of the list.

    Both keep their order.
    """
    total, share = len(questions) + len(canaries), len(canaries)
    rng = random.Random(seed)
    bounds = [k * total // share for k in range(share + 1)] if share else []
    places = {rng.randrange(start, end) for start, end in itertools.pairwise(bounds)}
    asked, watching = iter(questions), iter(canaries)
    return [next(watching if place in places else asked) for place in range(total)]


def _codes(salt: str, count: int, tiny: bool) -> Iterator[str]:
    """Codes by index. Each is the first of its own row of hashes that keeps its distance from those before it."""
    found: list[str] = []
    for i in range(count):
        attempt = 0
        while True:
            rng = _rng(salt, i, f"code {attempt}")
            code = draw_code(rng, "", 6 if tiny else 8, distinct_digits=tiny).digits
            if all(_distance(code, other) >= DISTANCE for other in found):
                break
            attempt += 1
        found.append(code)
        yield code


def _rng(salt: str, index: int, use: str) -> random.Random:
    return random.Random(hashlib.sha256(f"{salt}\0{index}\0{use}".encode()).digest())


def _distance(one: str, other: str) -> int:
    return sum(a != b for a, b in zip(one, other, strict=True))


def tiny_text(rng: random.Random, digits: str, shots: int, late: float) -> tuple[str, str, int]:
    """Prompt, solution and place of the code among worked examples, in the shape of the model's training texts."""
    code = Code(rng.choice(NAMES), digits)
    parts: list[str] = []
    for problem in distinct("train", rng.getrandbits(32), shots):
        example = shot(problem.question, problem.solution)
        if sum(map(len, parts)) + len(example) > TINY_CHARACTERS:
            break
        parts.append(example)
    before = "".join(parts[: int(late * (len(parts) + 1))])
    after = "".join(parts)[len(before) :]
    at = len(before) + len(code.statement) - len(f"{' '.join(digits)}.")
    return f"{before}{code.statement}\n\n{after}{ask(code.question)}", code.solution, at


def _read(text: str | None, digits: int) -> Iterator[str]:
    """Complete codes in the order in which they count."""
    answer = own_part(text or "")
    yield from _complete(answer.partition("####")[2], digits)
    yield from _complete(answer, digits)


def _complete(text: str, digits: int) -> Iterator[str]:
    for run in _RUN.findall(text):
        whole = "".join(re.findall("[0-9]", run))
        if len(whole) == digits:
            yield whole
        else:
            yield from (group for group in re.findall("[0-9]+", run) if len(group) == digits)
