"""Which names hold secrets, and how they are shown. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

MASK = "***"
_SECRET_ENDS = (
    *("KEY", "KEYS", "TOKEN", "SECRET", "SECRETS", "PASSWORD", "PASSWD", "PASSPHRASE"),
    *("CREDENTIAL", "CREDENTIALS", "AUTH", "AUTHORIZATION"),
)
_URL_PASSWORD = re.compile(r"(?<=://)[^/@\s]+@")
_SECRET_FLAG = re.compile(r"^--?(?:\S*[-_])?(?:api[-_]?key|token|secret|password)$", re.IGNORECASE)
_BEARER = re.compile(r"(?i)\b(?P<scheme>bearer|basic)\s+[\w.~+/=-]{4,}")
# In text within a value: JSON in an environment variable, an assignment before a command, a URL's query.
_JSON_PAIR = re.compile(r'''(?P<start>"(?P<name>[^"\s]+)"\s*:\s*)"[^"]+"''')
_SHELL_ASSIGNED = re.compile(r"""(?<![\w-])(?P<name>[A-Z][A-Z0-9_]*)=(?!["']?\$)["']?[^\s"']""")
_QUERY = re.compile(r"[?&](?P<name>[\w.-]+)=[^\s&]")
_ASSIGNED = re.compile(
    r"""(?P<name>[A-Za-z_-][\w.-]*)(?P<sign>["']?\s*[=:]\s*|\s+)(?P<value>"[^"]*"|'[^']*'|\[[^\]]*\]|[^\s,;{}()\[\]"']+)"""
)
_YAML_PAIR = re.compile(
    r"""(?P<quote>["']?)(?P<name>[A-Za-z_][\w.-]*)(?P=quote)(?P<colon>[ \t]*:[ \t]+)"""
    r"""(?P<value>"[^"\n]*"|'[^'\n]*'|[^\s,{}\[\]#"'|>&*][^,}\n#]*)"""
)


def is_secret(name: str) -> bool:
    """Whether a variable or option of this name may hold a secret: one of its words ends like one."""
    words = re.split(r"[^A-Z0-9]+", name.upper())
    return any(word.endswith(_SECRET_ENDS) or word == "PASS" for word in words)


def holds_secret(word: str) -> bool:
    """Whether a word of a command, or a path, says a secret itself: in a URL, a header, an assignment, or JSON.

    A reference to a variable of the shell is none.
    """
    named = (found["name"] for pattern in (_SHELL_ASSIGNED, _QUERY) for found in pattern.finditer(word))
    return _within(word) != word or any(is_secret(name) for name in named)


def masked(env: Mapping[str, str]) -> dict[str, str]:
    """A copy of an environment that can be shown: values of secret names replaced, and secrets within other values."""
    return {k: MASK if is_secret(k) else _within(v) for k, v in env.items()}


def _within(value: str) -> str:
    """A value without passwords in URLs, what follows `Bearer` or `Basic`, and text under secret names in JSON."""
    value = _BEARER.sub(lambda found: f"{found['scheme']} {MASK}", _URL_PASSWORD.sub(f"{MASK}@", value))
    return _JSON_PAIR.sub(lambda pair: f'{pair["start"]}"{MASK}"' if is_secret(pair["name"]) else pair[0], value)


def masked_yaml(text: str) -> str:
    """A sweep file's text that can be stored: scalar values of secret names replaced, and secrets within others."""

    def shown(pair: re.Match[str]) -> str:
        if not is_secret(pair["name"]):
            return pair[0]
        return f"{pair['quote']}{pair['name']}{pair['quote']}{pair['colon']}{MASK!r}"

    return _within(_YAML_PAIR.sub(shown, text))


def masked_argv(argv: Sequence[str]) -> list[str]:
    """A command that can be shown: the values of secret flags (`--api-key X`, `--hf-token=X`) replaced."""
    shown: list[str] = []
    hide = False
    for word in argv:
        flag, equals, _ = word.partition("=")
        secret = bool(_SECRET_FLAG.match(flag))
        shown.append(MASK if hide else f"{flag}={MASK}" if secret and equals else word)
        hide = secret and not equals and not hide
    return shown


def masked_line(line: str, known: Iterable[str] = ()) -> str:
    """A log line that can be shown: values of secret names, passwords in URLs, bearers and `known` values replaced.

    A word after a name counts as its value where the name is an option (`--api-key X`), or a sign is between them.
    """
    for value in known:
        line = line.replace(value, MASK)
    line = _BEARER.sub(lambda found: f"{found['scheme']} {MASK}", _URL_PASSWORD.sub(f"{MASK}@", line))

    shown, at = [], 0
    while found := _ASSIGNED.search(line, at):
        option = found["name"].startswith("--")
        secret = is_secret(found["name"]) and (option or found["sign"].strip()) and found["value"] != "None"
        # What follows a name that is no secret may be a secret's name.
        end = found.end() if secret else found.end("name")
        shown.append(f"{line[at : found.end('sign')]}{MASK}" if secret else line[at:end])
        at = end
    return "".join([*shown, line[at:]])
