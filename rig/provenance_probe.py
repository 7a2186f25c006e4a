"""Which versions an engine's environment holds; run by that environment's own Python, and imports no engine.

    ENGINE/bin/python -I provenance_probe.py

Prints one JSON object; what could not be learnt is null. Standard library alone.
"""

from __future__ import annotations

import ctypes
import json
import re
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

NIXL = ("nixl", "nixl-cu13", "nixl-cu12")
"""The distributions of NIXL: the first only picks one of the others."""


def version(*names: str) -> str | None:
    """Of the first of these distributions that is there."""
    for name in names:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return None


def assigned(distribution: str, file: str, name: str) -> str | None:
    """A text that a module of a distribution assigns to a name, read without importing it."""
    path = Path(str(metadata.distribution(distribution).locate_file(file)))
    found = re.search(rf"^{name}(?:: [^=\n]*)? = .*?['\"]([^'\"]+)['\"]", path.read_text("utf-8"), re.MULTILINE)
    return found[1] if found else None


def vllm_commit() -> str | None:
    """The commit that vLLM was built from: pip's record of a checkout, its version file, or its version's `+g` part."""
    distribution = metadata.distribution("vllm")
    origin = json.loads(distribution.read_text("direct_url.json") or "{}")
    if commit := origin.get("vcs_info", {}).get("commit_id"):
        return str(commit)
    try:
        written = assigned("vllm", "vllm/_version.py", "__commit_id__ = commit_id")
    except OSError:
        written = None
    if written:
        return written.removeprefix("g")
    found = re.search(r"[+.]g([0-9a-f]{7,40})\b", distribution.version)
    return found[1] if found else None


def ucx() -> str | None:
    """The version that the UCX library within NIXL's wheel tells."""
    for name in NIXL[1:]:
        try:
            files = metadata.files(name) or []
        except metadata.PackageNotFoundError:
            continue
        for file in files:
            if re.fullmatch(r"libucp-.*\.so\S*", file.name):
                tell = ctypes.CDLL(str(file.locate())).ucp_get_version_string
                tell.restype = ctypes.c_char_p
                return str(tell().decode())
    return None


def learnt(question: Callable[[], str | None]) -> str | None:
    """The answer, or None where it cannot be had."""
    try:
        return question()
    except Exception:
        return None


def main() -> dict[str, Any]:
    return {
        "vllm": learnt(lambda: version("vllm")),
        "vllm_commit": learnt(vllm_commit),
        "nixl": learnt(lambda: version(*NIXL[1:], NIXL[0])),
        "torch": learnt(lambda: version("torch")),
        "cuda": learnt(lambda: assigned("torch", "torch/version.py", "cuda")),
        "ucx": learnt(ucx),
        "python": sys.version.split()[0],
    }


if __name__ == "__main__":
    print(json.dumps(main()))
