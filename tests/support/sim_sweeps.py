"""Sweeps on simulated engines: their file and their ports."""

from __future__ import annotations

import json
import random
import socket
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

from sweep_process import Json

PORTS = (20000, 25000)
"""Below those that Linux gives to outgoing connections, of which these tests make thousands, and none of configs/."""
_handed_out: set[int] = set()


def free_range(count: int) -> int:
    """The first of so many ports in a row that were free a moment ago at any address; none is handed out twice."""
    while True:
        first = random.randrange(*PORTS)
        wanted = set(range(first, first + count))
        if wanted & _handed_out:
            continue
        try:
            with ExitStack() as held:
                for port in wanted:
                    held.enter_context(socket.socket()).bind(("", port))
        except OSError:
            continue
        _handed_out.update(wanted)
        return first


def free_ports(count: int) -> list[int]:
    """Ports that were free a moment ago, all different."""
    return [free_range(1) for _ in range(count)]


def sweep_file(task: Mapping[str, Any] | None = None, sim: Mapping[str, Any] | None = None) -> Json:
    """A sweep of one P/D cell against one monolithic server, on free ports: 40 questions, a margin they can show."""
    prefill, prefill_side, decode, decode_side, proxy, alone = free_ports(6)
    settings = {"max_num_seqs": 64, **(sim or {})}
    return {
        "name": "cases",
        "models": {"sim": {"id": "sim/tiny", "served_name": "sim-tiny"}},
        "engines": {
            "sim": {
                "command": ["{rig_python}", "-m", "rig.sim"],
                "device": "cpu",
                "env": {"PDRIG_SIM_CONFIG": json.dumps(settings)},
            }
        },
        "cell": {
            "model": "sim",
            "engine": "sim",
            "async_scheduling": False,
            "kv_transfer_config": {
                "kv_connector": "NixlConnector",
                "kv_role": "kv_both",
                "kv_load_failure_policy": "fail",
                # What failed requests hold is waited for, after a cell: not for half a minute.
                "kv_connector_extra_config": {"kv_lease_duration": 5},
            },
            "both": {"args": {"max-model-len": 2048}},
            "prefill": {"port": prefill, "side_channel_port": prefill_side},
            "decode": {"port": decode, "side_channel_port": decode_side},
            "proxy": {"port": proxy},
            "task": "tiny",
        },
        "tasks": {
            "tiny": {
                "task": "gsm-tiny",
                "limit": 40,
                "shots": 2,
                "max_tokens": 64,
                "concurrency": 8,
                "warmup": 0,
                "canaries": 0,
                **(task or {}),
            }
        },
        "baseline": {"monolithic": {"port": alone}},
        "gates": {"max_accuracy_drop": 0.1},
        "rerun": False,
        "limits": {"start_s": 240, "check_s": 120, "hang_s": 120, "stop_s": 5},
    }
