"""Which names hold secrets, and how they are shown. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

MASK = "***"
_SECRET_ENDS = (
    *("KEY", "KEYS", "TOKEN", "SECRET", "SECRETS", "PASSWORD", "PASSWD", "PASSPHRASE"),
    *("CREDENTIAL", "CREDENTIALS", "AUTH", "AUTHORIZATION"),
)
_URL_PASSWORD = re.compile(r"(?<=://)[^/@\s]+@")
_YAML_PAIR = re.compile(
    r"""(?P<quote>["']?)(?P<name>[A-Za-z_][\w.-]*)(?P=quote)(?P<colon>[ \t]*:[ \t]+)"""
    r"""(?P<value>"[^"\n]*"|'[^'\n]*'|[^\s,{}\[\]#"'|>&*][^,}\n#]*)"""
)


def is_secret(name: str) -> bool:
    """Whether a variable or option of this name may hold a secret: one of its words ends like one."""
    return any(word.endswith(_SECRET_ENDS) for word in re.split(r"[^A-Z0-9]+", name.upper()))


def masked(env: Mapping[str, str]) -> dict[str, str]:
    """A copy of an environment that can be shown: values of secret names and passwords in URLs replaced."""
    return {k: MASK if is_secret(k) else _URL_PASSWORD.sub(f"{MASK}@", v) for k, v in env.items()}


def masked_yaml(text: str) -> str:
    """A sweep file's text that can be stored: scalar values of secret names and passwords in URLs replaced."""

    def shown(pair: re.Match[str]) -> str:
        if not is_secret(pair["name"]):
            return pair[0]
        return f"{pair['quote']}{pair['name']}{pair['quote']}{pair['colon']}{MASK!r}"

    return _URL_PASSWORD.sub(f"{MASK}@", _YAML_PAIR.sub(shown, text))
