"""Which blocks of prompts an engine still has: a prefix cache of whole blocks that forgets the least recently used."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence


class PrefixCache:
    """At most `blocks` blocks of `block_size` tokens, each known by all tokens up to its end."""

    def __init__(self, blocks: int, block_size: int) -> None:
        self._most = blocks
        self._size = block_size
        self._known: OrderedDict[int, None] = OrderedDict()

    def use(self, token_ids: Sequence[int]) -> int:
        """How many of a prompt's first tokens are known, the last one never; its whole blocks are known from now on.

        The last token is computed in any case, as its answer is needed (vLLM, v1/core/kv_cache_manager.py).
        """
        names = list(self._names(token_ids))
        hits = 0
        for name in names[: (len(token_ids) - 1) // self._size]:
            if name not in self._known:
                break
            hits += 1
        for name in names:
            self._known[name] = None
            self._known.move_to_end(name)
        while len(self._known) > self._most:
            self._known.popitem(last=False)
        return hits * self._size

    def _names(self, token_ids: Sequence[int]) -> Iterator[int]:
        name = 0
        for end in range(self._size, len(token_ids) + 1, self._size):
            name = hash((name, tuple(token_ids[end - self._size : end])))
            yield name
