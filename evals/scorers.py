"""How an answer text becomes right or wrong: named, versioned, hashed. Pure.

`gsm8k-strict` and `gsm8k-flexible` equal lm-evaluation-harness 0.4.13's `gsm8k` v3, `gsm8k-vllm` equals
vLLM's tests/evals/gsm8k/gsm8k_eval.py, `robust` is ours. Differences: docs/scoring.md.
"""

from __future__ import annotations

import ast
import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from evals import robust
from evals.errors import BadParams, DataError

ScoredOutcome = Literal["correct", "wrong", "unparsed", "truncated", "unscored"]


@dataclass(frozen=True)
class Scorer:
    """A way to score.

    `target` makes the expected answer from the reference text (raises DataError if it holds none),
    `extract` finds the answer in a text (None: there is none), `equal` compares an answer with a target. One that does
    not `judge` is for questions without a right answer: none of its outcomes is.
    """

    name: str
    version: str
    patterns: tuple[str, ...]
    target: Callable[[str], str]
    extract: Callable[[str], str | None]
    equal: Callable[[str, str], bool]
    judges: bool = True

    @property
    def sha256(self) -> str:
        """Of the definition: two results are comparable only if theirs are equal."""
        definition = json.dumps([self.name, self.version, *self.patterns])
        return hashlib.sha256(definition.encode()).hexdigest()


def score(scorer: Scorer, text: str | None, finish_reason: str | None, target: str) -> tuple[ScoredOutcome, str | None]:
    """Outcome and extracted answer of one text; `target` is what `scorer.target` gave.

    The text is scored first; `truncated` is only what ended by length without an answer.
    """
    if not scorer.judges:
        return "unscored", None
    answer = scorer.extract(text or "")
    if answer is None:
        return ("truncated" if finish_reason == "length" else "unparsed"), None
    return ("correct" if scorer.equal(answer, target) else "wrong"), answer


LM_EVAL_STRICT = r"#### (\-?[0-9\.\,]+)"
LM_EVAL_FLEXIBLE = r"(-?[$0-9.,]{2,})|(-?[0-9]+)"
LM_EVAL_IGNORED = (",", r"\$", r"(?s).*#### ", r"\.$")
"""lm-eval 0.4.13, tasks/gsm8k/gsm8k.yaml: the filters, and what exact_match drops from both sides in this order."""


def _lm_eval_normalised(text: str) -> str:
    for pattern in LM_EVAL_IGNORED:
        text = re.sub(pattern, "", text)
    return text.lower()


def _lm_eval_strict(text: str) -> str | None:
    match = re.search(LM_EVAL_STRICT, text)
    return match[1] if match else None


def _lm_eval_flexible(text: str) -> str | None:
    answer = None
    for match in re.finditer(LM_EVAL_FLEXIBLE, text):
        answer = match[0]
    return answer


def _lm_eval_equal(answer: str, target: str) -> bool:
    return _lm_eval_normalised(answer) == target


VLLM_DIGITS = r"\d+"


def _vllm_value(text: str) -> str | None:
    """The last run of decimal digits of any script, read as a Python literal: `08` and `\u0663` are none."""
    runs = re.findall(VLLM_DIGITS, text.replace(",", ""))
    if not runs:
        return None
    try:
        return str(ast.literal_eval(runs[-1]))
    except SyntaxError:
        return None


def _required(read: Callable[[str], str | None]) -> Callable[[str], str]:
    def target(answer_text: str) -> str:
        value = read(answer_text)
        if value is None:
            raise DataError(f"no answer in the reference answer {answer_text[-40:]!r}")
        return value

    return target


def _same_text(answer: str, target: str) -> bool:
    return answer == target


def _first_line(text: str) -> str | None:
    """The first line of the model's own part that has anything on it, without a final full stop."""
    lines = (line.strip().removesuffix(".").rstrip() for line in robust.own_part(text).splitlines())
    return next((line for line in lines if line), None)


NO_SCORER = "none"
"""The scorer of tasks whose questions have no right answer: their verdict rests on everything else."""

SCORERS: dict[str, Scorer] = {
    scorer.name: scorer
    for scorer in (
        Scorer(
            "gsm8k-strict",
            "3.0",
            (LM_EVAL_STRICT, *LM_EVAL_IGNORED),
            _lm_eval_normalised,
            _lm_eval_strict,
            _lm_eval_equal,
        ),
        Scorer(
            "gsm8k-flexible",
            "3.0",
            (LM_EVAL_FLEXIBLE, *LM_EVAL_IGNORED),
            _lm_eval_normalised,
            _lm_eval_flexible,
            _lm_eval_equal,
        ),
        Scorer("gsm8k-vllm", "1", (",", VLLM_DIGITS), _required(_vllm_value), _vllm_value, _same_text),
        Scorer(
            "robust",
            "1",
            tuple(robust.PATTERNS.values()),
            _required(robust.read_target),
            robust.read_answer,
            robust.same_number,
        ),
        Scorer("first-line", "1", ("first line", r"\.$"), _required(_first_line), _first_line, _same_text),
        Scorer(NO_SCORER, "1", (), lambda _: "", lambda _: None, _same_text, judges=False),
    )
}

NUMBER_SCORERS = ("gsm8k-strict", "gsm8k-flexible", "gsm8k-vllm", "robust")
"""Those for answers that are a number."""


def get_scorer(name: str) -> Scorer:
    """A scorer by name. Raises BadParams, naming those there are."""
    try:
        return SCORERS[name]
    except KeyError:
        raise BadParams(f"no scorer is called {name!r}; there are {', '.join(SCORERS)}") from None
