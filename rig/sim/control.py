"""Real engines' control file, obeyed by the simulated one: who is struck on arrival, and which damage that is.

The file is the one that PDRIG_FAULTS names (`rig.faults.control`), read again whenever it changes. Only requests whose
blocks come from the other side are struck, as in `rig.faults.arrivals`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from rig.faults import control
from rig.faults.watch import Watch
from rig.sim import log

KINDS: Mapping[str, str] = MappingProxyType(
    {
        "late_zeroing": "wrong_answer",
        "state_rewritten": "wrong_answer",
        "blocks_swapped": "swapped",
        "last_block_missing": "wrong_answer",
        "stale_blocks": "stale",
        "recompute_unwritten": "wrong_answer",
    }
)
"""The faults that damage answers, and the simulator's fault (`rig.sim.faults`) that damages them alike."""


class Controlled:
    """The control file's faults on one server; none without a file."""

    def __init__(self, env: Mapping[str, str], recompute: bool, push: bool = False) -> None:
        """`recompute`: the server's failure policy is `recompute`; `push`: prefill writes its blocks to it."""
        name = env.get(control.ENVIRONMENT)
        self._path = Path(name) if name else None
        self._watch = Watch(self._path, lambda text: log.line("ERROR", "watch.py", text)) if self._path else None
        self._recompute = recompute
        self._connector = "NixlPushConnector" if push else "NixlConnector"

    def striking(self, request_id: str, concurrency: int, prompt_tokens: int) -> dict[str, control.Fault]:
        """The faults by name that strike a request whose blocks are to be received; the first of a name wins."""
        sample_id = control.sample_of(request_id) if self._watch else None
        if self._watch is None or sample_id is None:
            return {}
        moment = control.Moment(concurrency, prompt_tokens)
        struck: dict[str, control.Fault] = {}
        for fault in self._watch.control(self._why_not).faults:
            if fault.fault not in struck and control.strikes(fault, sample_id, moment):
                struck[fault.fault] = fault
        return struck

    def _why_not(self, fault: control.Fault) -> str | None:
        return control.impossible(fault.fault, (self._connector,), self._recompute)

    def note(self, fault: str, request_id: str, **detail: Any) -> None:
        """Write down a strike that was done. Raises OSError."""
        if self._path is not None:
            sample_id = control.sample_of(request_id) or ""
            control.append_hit(self._path, control.Hit(fault, sample_id, request_id, time.time(), os.getpid(), detail))
