"""`boundaries`: questions behind filler that makes their prompts end at a block's edge, or a token beside it.

A block's unused tail, and the hand-over of the last block, show in prompts of k x block - 1, k x block and
k x block + 1 tokens. How many tokens a text has only the server knows: `fitted` asks it, prompt by prompt.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

from evals.canary_text import sentences
from evals.errors import BadParams
from evals.shapes import Draft, Edges, Sample, Task, prompt_sha256
from evals.tiny_hybrid.problems import distinct, shot

MULTIPLES = 4
"""So many counts of blocks, from the first into which a question fits."""

OFFSETS = (-1, 0, 1)
OFFSET = "offset"
LEAST = 12
"""Tokens of filler at the least: with fewer there is little to choose from."""

FINE = 6
"""Tokens that are left to single words at the least, when no more sentence fits."""

WORDS = (" and", " the", " so", " of", " it", " now", ".", ",")
"""Words that most tokenizers have as one token; which of them do, and in which place, is found by counting."""

TRIES = 6
"""Fillers that are tried before a length is given up."""

AT_ONCE = 16

Count = Callable[[str], Awaitable[int]]


def boundaries(questions: Draft, multiples: int) -> Draft:
    """The questions, still without filler. Raises BadParams."""
    if multiples < 1:
        raise BadParams(f"boundaries: multiples is {multiples}; it must be at least 1")
    edges = Edges(multiples, worked_examples=questions.canaries == "gsm-tiny")
    samples = tuple(replace(s, sample_id=f"boundary-{i:04d}") for i, s in enumerate(questions.samples))
    return replace(questions, version=f"1/{questions.version}", samples=samples, group_by=OFFSET, edges=edges)


async def fitted(task: Task, count: Count, block: int, room: int | None) -> Task:
    """The task with prompts of k x `block` + offset tokens, offset and k in turn; `meta` tells which.

    `count` gives the tokens of a prompt as the server that is asked counts them; `room` is the longest prompt and
    answer that it takes. Equal tokenizers give equal prompts. Raises BadParams where no filler makes a length.
    """
    edges = task.edges
    assert edges is not None
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(index: int, sample: Sample) -> Sample:
        async with gate:
            return await _fit(index, sample, edges, count, block, room)

    samples = tuple(await asyncio.gather(*(one(i, s) for i, s in enumerate(task.samples))))
    digest = prompt_sha256([s.prompt for s in samples], task.endpoint, task.params)
    return replace(task, samples=samples, prompt_sha256=digest, edges=None)


async def _fit(index: int, sample: Sample, edges: Edges, count: Count, block: int, room: int | None) -> Sample:
    bare = await count(sample.prompt)
    offset, step = OFFSETS[index % len(OFFSETS)], index // len(OFFSETS) % edges.multiples
    k = -(-(bare + LEAST - min(OFFSETS)) // block) + step
    wanted = k * block + offset
    if room is not None and wanted >= room:
        raise BadParams(
            f"boundaries: {sample.sample_id} is to have {wanted} tokens ({k} blocks of {block}), and the server takes "
            f"{room} with the answer; lower `shots` or `multiples`, or raise max-model-len"
        )
    for attempt in range(TRIES):
        prompt = await _padded(sample.prompt, wanted, _Filler(edges, index, attempt, wanted), count)
        if prompt is not None:
            meta = {OFFSET: f"{offset:+d}" if offset else "0", "k": k, "prompt_tokens": wanted}
            return replace(sample, prompt=prompt, meta=meta)
    raise BadParams(
        f"boundaries: no filler makes {sample.sample_id} {wanted} tokens long; this tokenizer joins single words"
    )


@dataclass(frozen=True)
class _Filler:
    """The filler of one question: whole sentences or worked examples, by how many of them."""

    edges: Edges
    index: int
    attempt: int
    wanted: int

    def pieces(self) -> list[str]:
        """More than are needed: a piece has two tokens or more."""
        seed = f"boundaries/1/{self.index}/{self.attempt}"
        if self.edges.worked_examples:
            number = random.Random(seed).getrandbits(32)
            return [shot(p.question, p.solution) for p in distinct("train", number, self.wanted // 20 + 2)]
        return [f"{sentence} " for sentence in sentences(random.Random(seed), self.wanted + 2)]

    @property
    def end(self) -> str:
        """What stands between sentences and the question; worked examples end by themselves."""
        return "" if self.edges.worked_examples else "\n\n"


async def _padded(prompt: str, wanted: int, filler: _Filler, count: Count) -> str | None:
    """The prompt behind filler, so that it has exactly `wanted` tokens; None where single words do not get there."""
    pieces = filler.pieces()

    def put(n: int, words: Sequence[str]) -> str:
        first = "".join(words).lstrip()
        lead = f"{first}\n\n" if first else ""
        return f"{lead}{''.join(pieces[:n]).rstrip(' ')}{filler.end if n else ''}{prompt}"

    low, high = 0, len(pieces)
    while low < high:
        middle = (low + high + 1) // 2
        if await count(put(middle, ())) <= wanted - FINE:
            low = middle
        else:
            high = middle - 1
    words: list[str] = []
    has = await count(put(low, words))
    while has < wanted:
        # As many of one word as are missing, were each a token; fewer where that is too much.
        for word, times in [(word, times) for times in (wanted - has, 1) for word in WORDS]:
            more = await count(put(low, [*words, *[word] * times]))
            if has < more <= wanted:
                words += [word] * times
                has = more
                break
        else:
            return None
    return put(low, words)
