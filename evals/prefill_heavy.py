"""`prefill-heavy`: long prompts and few new tokens, with as much of a prefix in common as wanted. Pure.

The prompts have no right answer: what they are for is load, and outputs that are the baseline's.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from evals.canary_text import sentences
from evals.errors import BadParams
from evals.scorers import NO_SCORER
from evals.shapes import Draft, Sample

PROMPTS = 150
WORDS = 3600
"""About 4,800 tokens of a common tokenizer, as in the load that validated an offload path (150 such prompts)."""

MOST_WORDS = 200_000
PARAMS = {"max_tokens": 16, "temperature": 0.0}
SEED = "prefill-heavy/1"


def prefill_heavy(count: int, words: int, shared: float) -> Draft:
    """`count` prompts of about `words` words, the first `shared` part of which, 0 to 1, is the same in all.

    Without a shared part they differ from the first word on. A longer list begins with the shorter. Raises BadParams.
    """
    if not 1 <= words <= MOST_WORDS:
        raise BadParams(f"prefill-heavy: words is {words}; it must be 1 to {MOST_WORDS}")
    if not 0 <= shared <= 1:
        raise BadParams(f"prefill-heavy: shared is {shared}; it is a share of the words, 0 to 1")
    common = " ".join(sentences(random.Random(f"{SEED}/shared"), round(words * shared)))
    samples = (Sample(f"prefill-heavy-{i:04d}", _prompt(i, common, words), "") for i in range(count))
    return Draft("1", PARAMS, (NO_SCORER,), tuple(samples))


def _prompt(index: int, common: str, words: int) -> str:
    own = sentences(random.Random(f"{SEED}/{index}"), words - len(common.split()))
    return " ".join(_parts(index, common, own)) + "\n\nThe notes above tell mainly of"


def _parts(index: int, common: str, own: list[str]) -> Iterator[str]:
    if common:
        yield common
    if own or not common:
        yield f"Notebook {index:04d}:"
    yield from own
