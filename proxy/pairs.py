"""Which prefill and which decode instance serve the next request. Pure."""

from __future__ import annotations

import math

from proxy.settings import Instance


class Pairs:
    """Round robin on both sides, in step, shifted by one after each full turn.

    Without the shift two and two instances would only ever meet as 0-0 and 1-1, and a pair that cannot work
    together would never be tried. Nothing is skipped: an instance that is down fails its share of requests.
    """

    def __init__(self, prefill: tuple[Instance, ...], decode: tuple[Instance, ...]) -> None:
        self._prefill = prefill
        self._decode = decode
        self._turn = math.lcm(len(prefill), len(decode))
        self._n = 0

    def next(self) -> tuple[Instance, Instance]:
        n = self._n
        self._n += 1
        return self._prefill[n % len(self._prefill)], self._decode[(n + n // self._turn) % len(self._decode)]
