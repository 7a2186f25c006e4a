"""The control file: which faults an engine plants, whom they strike, and the record of each strike.

Both sides read it: the rig as `rig.faults.control`, the engine as `pdrig_faults.control`. Standard library only.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from types import MappingProxyType
from typing import Any

ENVIRONMENT = "PDRIG_FAULTS"
"""The environment variable that names the control file; without it nothing is planted."""

FAULTS: Mapping[str, str] = MappingProxyType(
    {
        "late_zeroing": "received blocks are zeroed after they have arrived",
        "state_rewritten": "the received SSM/GDN state is overwritten with an earlier request's",
        "blocks_swapped": "received attention blocks are replaced with another request's",
        "last_block_missing": "the last attention block keeps what it held before the transfer",
        "stale_blocks": "all received blocks keep what their earlier owner left",
        "recompute_unwritten": "a failed load under `recompute` leaves blocks neither loaded nor recomputed",
        "slow_transfer": "the arrival is reported `ms` later",
        "failed_handshake": "the transfer fails at the handshake",
    }
)
"""Every fault of a hand-off by name, with one line of what it does."""

STORAGE_FAULTS: Mapping[str, str] = MappingProxyType(
    {
        "storage_zeroed": "blocks that an offload storage gave back are zeroed",
        "storage_swapped": "an offload storage gives back another request's blocks",
    }
)
"""Those of a storage behind an OffloadingConnector, which a hand-off may go on beside."""

NIXL = ("NixlConnector", "NixlPullConnector", "NixlPushConnector")
"""The connectors in whose transfers faults can be planted, alone or within a MultiConnector."""

OFFLOADING = "OffloadingConnector"
GROUPS = ("attention", "state", "all")
NEVER_STRUCK = ("warmup", "preflight")

_REQUEST_ID = re.compile(
    r"(?:cmpl-|chatcmpl-)?(?P<sample>.+)-[0-9a-f]{16}(?:-[0-9a-f]{32})?(?:-\d+)?(?:-[0-9a-f]{8})?",
    re.DOTALL,
)


@dataclass(frozen=True)
class When:
    """Conditions of a strike, all of which must hold; the defaults always hold.

    `min_concurrency` counts requests in flight on that server, this one included;
    `prompt_multiple_of` strikes only prompts whose length in tokens is a multiple of it.
    """

    min_concurrency: int = 0
    min_prompt_tokens: int = 0
    prompt_multiple_of: int = 1

    def __post_init__(self) -> None:
        for name, least in (("min_concurrency", 0), ("min_prompt_tokens", 0), ("prompt_multiple_of", 1)):
            value = getattr(self, name)
            if type(value) is not int or value < least:
                raise ValueError(f"when.{name} must be a whole number of at least {least}, not {value!r}")


@dataclass(frozen=True)
class Moment:
    """What a server knows of a request when its blocks arrive; lengths in tokens."""

    concurrency: int
    prompt_tokens: int


@dataclass(frozen=True)
class Fault:
    """One fault to plant: `samples` names whom it strikes, or, when None, the draw of `seed` at `rate` does.

    `params`: `groups` ("attention", "state" or "all") of late_zeroing and storage_zeroed, `ms` of slow_transfer.
    Raises ValueError when a value is not one that the engine could obey.
    """

    fault: str
    rate: float = 0.0
    seed: int = 0
    samples: tuple[str, ...] | None = None
    when: When = field(default_factory=When)
    params: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.fault not in {**FAULTS, **STORAGE_FAULTS}:
            raise ValueError(f"no fault {self.fault!r}; there are: {', '.join([*FAULTS, *STORAGE_FAULTS])}")
        if isinstance(self.rate, bool) or not isinstance(self.rate, (int, float)) or not 0 <= self.rate <= 1:
            raise ValueError(f"rate must be between 0 and 1, not {self.rate!r}")
        if type(self.seed) is not int:
            raise ValueError(f"seed must be a whole number, not {self.seed!r}")
        if self.samples is not None and not all(isinstance(s, str) for s in self.samples):
            raise ValueError("samples must be sample ids, or null")
        self._check_params()

    def _check_params(self) -> None:
        by_fault = {"late_zeroing": {"groups"}, "storage_zeroed": {"groups"}, "slow_transfer": {"ms"}}
        known = by_fault.get(self.fault, set())
        if unknown := sorted(set(self.params) - known):
            raise ValueError(f"{self.fault} has no parameter {unknown[0]!r}")
        if self.groups not in GROUPS:
            raise ValueError(f"groups must be one of {', '.join(GROUPS)}, not {self.groups!r}")
        if isinstance(self.ms, bool) or not isinstance(self.ms, (int, float)) or not 0 <= self.ms < float("inf"):
            raise ValueError(f"ms must be a number of milliseconds, not {self.ms!r}")

    @property
    def groups(self) -> str:
        """Which KV-cache groups are zeroed."""
        value: str = self.params.get("groups", "attention")
        return value

    @property
    def ms(self) -> float:
        """Milliseconds by which slow_transfer delays."""
        value: float = self.params.get("ms", 1000)
        return value


@dataclass(frozen=True)
class Control:
    """The content of a control file."""

    faults: tuple[Fault, ...] = ()

    def to_json(self) -> str:
        return json.dumps({"faults": [{**asdict(f), "params": dict(f.params)} for f in self.faults]}, indent=1)

    @classmethod
    def from_json(cls, text: str) -> Control:
        """Raises ValueError, in one line, when the text is not a control file."""
        data = json.loads(text)
        entries = _only(data, {"faults"}, "the control file").get("faults", [])
        if not isinstance(entries, list):
            raise ValueError("faults must be a list")
        return cls(tuple(_fault(entry) for entry in entries))

    @classmethod
    def read(cls, path: Path) -> Control:
        """Raises OSError when the file cannot be read, ValueError when it is not a control file."""
        return cls.from_json(path.read_text(encoding="utf-8"))

    def write(self, path: Path) -> None:
        """Replace the file whole, so that a reader sees the old content or the new one."""
        draft = path.with_name(f"{path.name}.{os.getpid()}.tmp")
        draft.write_text(self.to_json(), encoding="utf-8")
        draft.replace(path)


@dataclass(frozen=True)
class Hit:
    """One strike that was really done; `detail` says what was changed."""

    fault: str
    sample_id: str
    request_id: str
    unix_time: float
    pid: int
    detail: Mapping[str, Any] = field(default_factory=dict)


def _only(data: Any, keys: set[str], what: str) -> dict[str, Any]:
    if not isinstance(data, dict):
        raise ValueError(f"{what} must be an object")
    if unknown := sorted(set(data) - keys):
        raise ValueError(f"{what} has no key {unknown[0]!r}")
    return data


def _fault(entry: Any) -> Fault:
    known = {f.name for f in fields(Fault)}
    values = dict(_only(entry, known, "a fault"))
    if "fault" not in values:
        raise ValueError("a fault needs its name under 'fault'")
    if (samples := values.get("samples")) is not None:
        if not isinstance(samples, list):
            raise ValueError("samples must be a list of sample ids, or null")
        values["samples"] = tuple(samples)
    values["when"] = When(**_only(values.get("when") or {}, {f.name for f in fields(When)}, "when"))
    values["params"] = _only(values.get("params") or {}, {"groups", "ms"}, "params")
    return Fault(**values)


def draw(fault: str, seed: int, sample_id: str) -> float:
    """A number in [0, 1), the same wherever and whenever it is drawn."""
    digest = hashlib.sha256(f"{seed}:{fault}:{sample_id}".encode("utf-8", "surrogatepass")).hexdigest()
    return float(int(digest[:16], 16) / 2**64)


def chosen(fault: Fault, sample_id: str) -> bool:
    """Whether the sample is among those that the fault strikes when its conditions hold."""
    if sample_id.startswith(NEVER_STRUCK):
        return False
    if fault.samples is not None:
        return sample_id in fault.samples
    return draw(fault.fault, fault.seed, sample_id) < fault.rate


def strikes(fault: Fault, sample_id: str, moment: Moment) -> bool:
    """Whether the fault strikes this request now; warm-up and preflight requests never."""
    return (
        chosen(fault, sample_id)
        and moment.concurrency >= fault.when.min_concurrency
        and moment.prompt_tokens >= fault.when.min_prompt_tokens
        and moment.prompt_tokens % fault.when.prompt_multiple_of == 0
    )


def impossible(fault: str, connectors: Iterable[str], recomputes: bool) -> str | None:
    """Why a fault cannot be planted in an engine; None where it can.

    `connectors` are its connector and those within it, `recomputes` says that its failure policy is `recompute`.
    """
    names = list(connectors)
    nixl = [name for name in names if name in NIXL]
    if fault in STORAGE_FAULTS:
        return None if OFFLOADING in names else f"it damages what an {OFFLOADING} loads, and this engine has none"
    if not nixl:
        return f"faults are planted in the transfers of {', '.join(NIXL)}, and this engine has none of them"
    if fault == "stale_blocks" and "NixlPushConnector" in nixl:
        return "under NixlPushConnector prefill writes the blocks it holds; decode reads nothing that could be stale"
    if fault == "recompute_unwritten" and not recomputes:
        return "it needs kv_load_failure_policy: recompute"
    return None


def sample_of(request_id: str) -> str | None:
    """The sample id inside an engine's request id, None when the rig did not name the request.

    The client sends `<sample id>-<16 hex>`, the proxy adds `-<32 hex>`, and vLLM 0.32 makes `cmpl-<that>-0-<8 hex>` or
    `chatcmpl-<that>-<8 hex>` of it.
    """
    match = _REQUEST_ID.fullmatch(request_id)
    return match["sample"] if match else None


def hits_path(control: Path) -> Path:
    """Where the strikes of a control file are written."""
    return control.with_name(f"{control.name}.hits.jsonl")


def read_hits(control: Path) -> list[Hit]:
    """The strikes done so far under this control file, in the order written; none when there is no such file.

    Raises ValueError when a whole line is not a hit. A last line without its end is still being written: left out.
    """
    try:
        text = hits_path(control).read_text(encoding="utf-8")
    except FileNotFoundError:
        return []
    whole = text[: text.rfind("\n") + 1]
    return [Hit(**json.loads(line)) for line in whole.splitlines()]


def append_hit(control: Path, hit: Hit) -> None:
    """Add one whole line; engines of one server may write at once."""
    line = (json.dumps(asdict(hit)) + "\n").encode()
    handle = os.open(hits_path(control), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(handle, line)
    finally:
        os.close(handle)
