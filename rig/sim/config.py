"""The settings of the simulated engine beside vLLM's options: speed, accuracy, faults.

They come from PDRIG_SIM_CONFIG, --sim-config (each a JSON object or a file of one), PDRIG_SIM_FAULTS (a JSON
list of faults, added to those of the settings), PDRIG_SIM_DATA and PDRIG_SIM_LEDGER.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from rig.sim.faults import Fault
from rig.sim.options import OptionError, Options


class Settings(BaseModel):
    """How fast, how right, how broken. Times in ms unless named `_s`; sizes in blocks or bytes."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    accuracy: float = Field(1.0, ge=0, le=1)
    seed: int = 0
    noise: float = Field(0.0, ge=0, le=0.5)
    prefill_ms: float = Field(0.0, ge=0)
    prefill_ms_per_token: float = Field(0.0, ge=0)
    ms_per_token: float = Field(0.0, ge=0)
    transfer_ms: float = Field(0.0, ge=0)
    max_num_seqs: int | None = Field(None, ge=1)
    kv_blocks: int = Field(10000, ge=1)
    offload_blocks: int = Field(100000, ge=1)
    kv_groups: int = Field(2, ge=1)
    kv_bytes_per_token: int = Field(1024, ge=1)
    keep_alive_s: float = Field(5.0, gt=0)
    reject_duplicate_ids: bool = False
    faults: tuple[Fault, ...] = ()
    data: str | None = None
    ledger: str | None = None


def load(options: Options, env: Mapping[str, str]) -> Settings:
    """The settings of one server; the command line wins over the environment. Raises OptionError."""
    data: dict[str, Any] = {}
    for name, text in (("PDRIG_SIM_CONFIG", env.get("PDRIG_SIM_CONFIG")), ("--sim-config", options.sim_config)):
        if text:
            part = _json(name, text)
            if not isinstance(part, dict):
                raise OptionError(f"{name}: expected a JSON object")
            data.update(part)
    more = env.get("PDRIG_SIM_FAULTS")
    if more:
        faults = _json("PDRIG_SIM_FAULTS", more)
        if not isinstance(faults, list):
            raise OptionError("PDRIG_SIM_FAULTS: expected a JSON list")
        data["faults"] = [*data.get("faults", []), *faults]
    data["data"] = env.get("PDRIG_SIM_DATA") or data.get("data")
    data["ledger"] = options.sim_ledger or env.get("PDRIG_SIM_LEDGER") or data.get("ledger")
    try:
        return Settings.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise OptionError(f"simulated engine: {where}: {first['msg'].removeprefix('Value error, ')}") from None


def _json(name: str, text: str) -> Any:
    """The text itself as JSON, or the file that it names."""
    if not text.lstrip().startswith(("{", "[")):
        try:
            text = Path(text).read_text()
        except OSError as error:
            raise OptionError(f"{name}: {error}") from None
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise OptionError(f"{name}: not JSON: {error}") from None
