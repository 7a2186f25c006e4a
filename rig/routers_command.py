"""A router's command with places for addresses: `{port}`, `{prefill}` and what else may stand in it. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit

from rig.secrets import holds_secret, masked_argv

ONCE = ("host", "port", "metrics_port", "rig_python")
SERVERS = tuple(f"{role}{part}" for role in ("prefill", "decode") for part in ("", "_host", "_port"))

_PLACE = re.compile(r"\{(?P<name>[a-z][a-z_]*)(?P<mark>\.\.\.|,|)\}")
_DEFAULT_PORTS = {"http": 80, "https": 443}


def problem(command: Sequence[str]) -> str | None:
    """What is wrong with a command as a user wrote it; None if nothing is."""
    # First, as the other messages show words.
    if masked_argv(command) != list(command) or any(map(holds_secret, command)):
        return "a command is stored and shown, so it holds no secrets; let the program take them from the environment"
    places = [match for word in command for match in _PLACE.finditer(word)]
    for match in places:
        if match["name"] not in (*ONCE, *SERVERS):
            return f"no placeholder {match[0]}; known: {', '.join(f'{{{name}}}' for name in (*ONCE, *SERVERS))}"
        if match["mark"] and match["name"] in ONCE:
            return f"{match[0]} is one value; write {{{match['name']}}}"
    if command and not command[0].strip():
        return "the first word is the program, and it is empty"
    for word in command:
        if len({(m["name"].partition("_")[0], m["mark"]) for m in _servers(word)}) > 1:
            return f"{word} holds places of both sides or of two kinds; give each a word of its own"
    named = {match["name"].partition("_")[0] for match in places if match["name"] in SERVERS}
    lacking = [f"{{{name}}}" for name in ("prefill", "decode") if name not in named]
    lacking += [] if any(match["name"] == "port" for match in places) else ["{port}"]
    if lacking:
        return f"say where {' and '.join(lacking)} belong{'s' if len(lacking) == 1 else ''} in it (docs/routers.md)"
    return None


def filled_once(command: Sequence[str], values: Mapping[str, str]) -> tuple[str, ...]:
    """The command with these values for placeholders of ONCE; others stay as they are."""
    return tuple(_PLACE.sub(lambda match: values.get(match["name"], match[0]), word) for word in command)


def filled(
    command: Sequence[str], prefill: Sequence[str], decode: Sequence[str], values: Mapping[str, str]
) -> tuple[str, ...]:
    """The command with the servers' URLs, and with `values` for placeholders of ONCE.

    A word with `{prefill}` is repeated for each prefill server, with the option before it if it has one of its own;
    `{prefill...}` repeats the word alone, `{prefill,}` puts all of them into one, separated by commas. The same for
    `{decode}`, and with `_host` or `_port` for a part of the address.
    """
    urls = {"prefill": prefill, "decode": decode}
    words: list[str] = []
    command = filled_once(command, values)
    for at, word in enumerate(command):
        places = _servers(word)
        if not places:
            words.append(word)
            continue
        mark = places[0]["mark"]
        addresses = urls[places[0]["name"].partition("_")[0]]
        if mark == ",":
            words.append(_with(word, addresses))
            continue
        before = command[at - 1] if at else ""
        option = not mark and before.startswith("-") and not word.startswith("-") and not _servers(before)
        for number, url in enumerate(addresses):
            words += [before] if option and number else []
            words.append(_with(word, [url]))
    return tuple(words)


def has(command: Sequence[str], name: str) -> bool:
    """Whether a placeholder of this name stands in the command."""
    return any(match["name"] == name for word in command for match in _PLACE.finditer(word))


def port_of(url: str) -> int:
    """The port of a URL, or that of its scheme where it names none."""
    address = urlsplit(url)
    return address.port or _DEFAULT_PORTS[address.scheme]


def _servers(word: str) -> list[re.Match[str]]:
    return [match for match in _PLACE.finditer(word) if match["name"] in SERVERS]


def _with(word: str, urls: Sequence[str]) -> str:
    """The word with these servers in its places, separated by commas."""
    return _PLACE.sub(lambda match: ",".join(_part(match, url) for url in urls), word)


def _part(match: re.Match[str], url: str) -> str:
    """What of a URL a placeholder stands for; the match itself where it stands for none."""
    if match["name"] not in SERVERS:
        return match[0]
    if match["name"].endswith("_host"):
        return urlsplit(url).hostname or ""
    if match["name"].endswith("_port"):
        return str(port_of(url))
    return url
