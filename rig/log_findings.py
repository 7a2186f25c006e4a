"""What the engines' logs say about single requests and failed hand-offs. Pure.

The lines are those of vLLM 0.27 to 0.32, each with its source file below (nixl/ is
`distributed/kv_transfer/kv_connector/v1/nixl/`; before 0.29 one file, `nixl_connector.py`).

What taints an answer: prefill's word that decode's read of this request ended when its blocks were not protected any
more. A lease that ran out proves nothing alone: nobody may have read, or decode had read and its notice was lost.
A read that prefill cannot match to a request, with the lease running out only afterwards, took blocks that were still
held. `Got invalid KVTransferParams` says that decode computed the prompt itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from rig.records import Channel, Finding
from rig.secrets import masked_yaml

QUOTED_CHARS = 200

EXPIRED_LEASE = "expired_lease"
STALE_BLOCKS = "stale_blocks"
DECODE_PREFILLED = "decode_prefilled"

_Read = Literal["after", "unmatched", "held"]

_ENGINE_ID = re.compile(
    r"^(?:(?P<chat>chatcmpl)|cmpl)-(?P<id>.+-[0-9a-f]{16})(?:-[0-9a-f]{32})?(?(chat)|-\d+)(?:-[0-9a-f]{8})?$"
)


@dataclass(frozen=True)
class LogFindings:
    """Findings of the logs, and what they say against answers: taints by the rig's request id.

    A request that has none of the rig's goes by the engine's (rig.routers joins those to answers).
    """

    findings: tuple[Finding, ...] = ()
    taints: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def rig_id(engine_id: str) -> str | None:
    """The rig's id of a request from an engine's; None if the request is not the rig's.

    vLLM puts `cmpl-` before and `-0` behind (`chatcmpl-` and nothing for chat), then `-` and 8 hex digits; the rig's
    proxy appends `-` and 32 hex digits to what the rig sends, which ends with 16.
    """
    match = _ENGINE_ID.match(engine_id)
    return match["id"] if match else None


@dataclass(frozen=True)
class _Kind:
    """One message; its groups other than `what` hold request ids. `words` stand in the finding, with a number."""

    pattern: re.Pattern[str]
    words: str
    channel: Channel = "transfer"
    severity: Literal["note", "damage"] = "note"
    unit: Literal["lines", "requests"] = "lines"


# nixl/base_worker.py; `decode worker(s) within N seconds` before leases had heartbeats
_EXPIRED = _Kind(
    re.compile(r"Releasing expired KV blocks for request (?P<ids>\S+) which were retrieved by \d+ "),
    "leases ran out, and their blocks were freed",
)
# nixl/pull_worker.py
_LATE = _Kind(
    re.compile(r"Potentially invalid KV blocks for unrecognized request (?P<ids>\S+) were retrieved by"),
    "decode read blocks that prefill had given up",
)
# nixl/pull_scheduler.py
_BAD_PARAMS = _Kind(
    re.compile(r"Got invalid KVTransferParams: (?:.*?'remote_request_id': '(?P<ids>[^']+)')?"),
    "transfer parameters were unusable, and decode prefilled by itself",
)
_KINDS = (
    _EXPIRED,
    _LATE,
    # nixl/push_worker.py
    _Kind(
        re.compile(r"Unrecognized request (?P<ids>\S+) notif \(may have expired\)"),
        "notices came for requests that had been given up",
    ),
    # nixl/base_worker.py, from all of nixl/: handshakes, transfers and notifications
    _Kind(
        re.compile(r"NIXL transfer failure: (?P<what>\w+)(?:.*?'request_id': '(?P<ids>[^']+)')?"),
        "handshakes, transfers or notifications failed",
    ),
    # nixl/pull_worker.py, bidirectional hand-off
    _Kind(
        re.compile(r"Declining expired remote read for (?P<ids>\S+) from engine"),
        "reads were declined because the blocks had expired",
    ),
    # nixl/push_scheduler.py
    _Kind(
        re.compile(r"NixlPushConnector: registration for request (?P<ids>\S+) timed out"),
        "registrations for a push timed out",
    ),
    # nixl/push_worker.py
    _Kind(
        re.compile(r"No remote agents for engine \S+; cannot send registration for (?P<ids>\S+)"),
        "registrations for a push could not be sent",
    ),
    # nixl/push_worker.py
    _Kind(
        re.compile(r"No (?:local )?blocks to push for request (?P<ids>\S+)"),
        "requests had no blocks to push",
    ),
    _BAD_PARAMS,
    # v1/engine/core.py
    _Kind(
        re.compile(r"Got kv_transfer_params, but no KVConnector found"),
        "transfer parameters came to an engine without a KV connector",
    ),
    # nixl/base_worker.py
    _Kind(
        re.compile(r"Local NIXL metadata for remote engine \S+ was invalidated"),
        "the connection to another engine was given up",
    ),
    # v1/core/sched/scheduler.py
    _Kind(
        re.compile(r"Failing \d+ request\(s\) due to KV load failure .*Request IDs: (?P<ids>.*)"),
        "KV could not be loaded, and requests failed",
    ),
    # v1/core/sched/scheduler.py; names no request
    _Kind(
        re.compile(r"Recovered from KV load failure: \d+ request\(s\) rescheduled"),
        "KV could not be loaded, and requests were computed again",
    ),
    # entrypoints/generate/base/serving.py, entrypoints/openai/engine/serving.py before
    _Kind(
        re.compile(r"Request (?P<ids>\S+) failed with an internal error during generation"),
        "requests failed within the engine",
        "errors",
    ),
    # v1/engine/async_llm.py, with --enable-log-requests alone
    _Kind(
        re.compile(r"(?:Request (?P<ids>\S+) aborted\.|Aborted request\(s\) (?P<more>\S+)\.)$"),
        "requests were aborted",
        "errors",
    ),
)
_READS: Mapping[_Read, _Kind] = {
    "after": _Kind(
        _LATE.pattern,
        "decode read blocks after their lease had run out: these answers came from freed blocks",
        severity="damage",
        unit="requests",
    ),
    "unmatched": _Kind(
        _LATE.pattern,
        "decode read blocks that prefill did not hold any more: these answers may have come from other requests' data",
        severity="damage",
        unit="requests",
    ),
    "held": _Kind(_LATE.pattern, "prefill did not recognise who had read blocks that it still held", unit="requests"),
}
# In every line that a pattern can match: looked for first, as most lines hold none of them.
_MARKS = (
    *(
        "expired",
        "Potentially invalid KV",
        "Unrecognized request",
        "NIXL",
        "Nixl",
        "No remote agents",
        "to push for request",
    ),
    *("KVTransferParams", "no KVConnector", "KV load failure", "internal error during generation"),
    *("aborted.", "Aborted request"),
)
_TALK = re.compile(r"\b(?:INFO|DEBUG) ")
_ID = re.compile(r"(?:chatcmpl|cmpl)-[^\s,'\"{}\[\]()]+")


@dataclass
class _Seen:
    """Lines of one kind of one instance."""

    count: int = 0
    first: str = ""
    request: str | None = None

    def add(self, line: str, request: str | None) -> None:
        if not self.count:
            self.first, self.request = line, request
        self.count += 1


def findings_in(lines: Iterable[tuple[str, str]]) -> LogFindings:
    """Findings and taints from lines of the logs, each with its instance, an instance's in their order.

    One finding a kind and instance, with a count and the first line (secrets masked). Keeps no lines but these.
    """
    seen: dict[tuple[str, _Kind], _Seen] = {}
    leases = _Leases()
    taints: dict[str, tuple[str, ...]] = {}
    for instance, line in lines:
        if not any(mark in line for mark in _MARKS):
            continue
        for kind in _KINDS:
            match = kind.pattern.search(line)
            if match is None or _is_quoted(line[: match.start()]):
                continue
            requests = _ID.findall(
                " ".join(text for name, text in match.groupdict().items() if name != "what" and text)
            )
            said = line[match.start() :]
            if kind is _LATE:
                leases.read(instance, requests, said)
            else:
                if kind is _EXPIRED:
                    leases.ran_out(instance, requests)
                elif kind is _BAD_PARAMS:
                    taints |= {rig_id(r) or r: (DECODE_PREFILLED,) for r in requests}
                seen.setdefault((instance, kind), _Seen()).add(said, _named(requests))
            break
    findings = [_finding(instance, kind, found) for (instance, kind), found in seen.items()]
    return LogFindings((*leases.findings(), *findings), {**taints, **leases.taints()})


def _is_quoted(before: str) -> bool:
    """Whether a message stands within another one, by what stands before it: a prompt that was logged, say."""
    return _TALK.search(before) is not None and not before.endswith("] ")


def _named(engine_ids: list[str]) -> str | None:
    return (rig_id(engine_ids[0]) or engine_ids[0]) if engine_ids else None


def _finding(instance: str, kind: _Kind, seen: _Seen) -> Finding:
    request = f", request {seen.request}" if seen.request else ""
    quoted = masked_yaml(seen.first.strip())[:QUOTED_CHARS]
    unit = kind.unit if seen.count > 1 else kind.unit.removesuffix("s")
    text = f"{instance}: {kind.words} ({seen.count} {unit}, first{request}: {quoted!r})"
    return Finding(kind.channel, text, f"the log of {instance}", kind.severity)


class _Leases:
    """Which requests were read when: an instance's lines in their order."""

    def __init__(self) -> None:
        self._over: set[tuple[str, str]] = set()
        self._reads: dict[tuple[str, str], tuple[_Read, str]] = {}

    def ran_out(self, instance: str, requests: list[str]) -> None:
        for request in requests:
            key = instance, rig_id(request) or request
            self._over.add(key)
            if key in self._reads and self._reads[key][0] == "unmatched":
                self._reads[key] = "held", self._reads[key][1]

    def read(self, instance: str, requests: list[str], line: str) -> None:
        for request in requests:
            key = instance, rig_id(request) or request
            if key in self._over:
                self._reads[key] = "after", line
            else:
                self._reads.setdefault(key, ("unmatched", line))

    def findings(self) -> list[Finding]:
        """One an instance and way of reading."""
        seen: dict[tuple[str, _Read], _Seen] = {}
        for (instance, request), (read, line) in self._reads.items():
            seen.setdefault((instance, read), _Seen()).add(line, request)
        return [_finding(instance, _READS[read], found) for (instance, read), found in seen.items()]

    def taints(self) -> dict[str, tuple[str, ...]]:
        """By the rig's id, or the engine's where the request is not the rig's."""
        because: dict[_Read, tuple[str, ...]] = {"after": (EXPIRED_LEASE, STALE_BLOCKS), "unmatched": (STALE_BLOCKS,)}
        return {request: because[read] for (_, request), (read, _) in self._reads.items() if read in because}
