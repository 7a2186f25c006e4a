"""Which names hold secrets, and how they are shown. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

MASK = "***"
_SECRET_NAME = re.compile(r"(KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL|AUTH)", re.IGNORECASE)
_NOT_SECRET = {"TOKENIZERS_PARALLELISM"}
_URL_PASSWORD = re.compile(r"(?<=://)[^/@\s]+@")


def is_secret(name: str) -> bool:
    """Whether an environment variable or flag of this name may hold a secret."""
    return name not in _NOT_SECRET and not name.upper().endswith("TOKENS") and bool(_SECRET_NAME.search(name))


def masked(env: Mapping[str, str]) -> dict[str, str]:
    """A copy of an environment that can be shown: values of secret names and passwords in URLs replaced."""
    return {k: MASK if is_secret(k) else _URL_PASSWORD.sub(f"{MASK}@", v) for k, v in env.items()}
