"""A YAML file as plain data, with the line of every key, and nothing lost on the way.

Stricter than YAML 1.1: a key given twice is refused, and the scalars are those of YAML 1.2's core schema,
so `on` and `off` stay text, `12:30` is no number and a date is no date. Of numbers those that YAML 1.1 knows too, and
`1e-3`: a build called `0815` or a commit `1234e56` is what was written. Merge keys (`<<`) work.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from rig.errors import ConfigError, Unreadable

Key = str | int
KeyPath = tuple[Key, ...]

MOST_NODES = 100_000
"""A sweep file has hundreds; aliases of aliases can stand for billions."""

_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_MERGE = "tag:yaml.org,2002:merge"
_TAGS = {f"tag:yaml.org,2002:{name}" for name in ("null", "bool", "int", "float", "str")}


class _Loader(yaml.SafeLoader):
    """SafeLoader with the resolvers of YAML 1.2 (core schema, https://yaml.org/spec/1.2.2/#103-core-schema)."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012


for _tag, _pattern, _first in (
    ("null", r"^(?:~|null|Null|NULL|)$", ["~", "n", "N", ""]),
    ("bool", r"^(?:true|True|TRUE|false|False|FALSE)$", list("tTfF")),
    ("int", r"^[-+]?(?:0|[1-9][0-9]*)$", list("-+0123456789")),
    ("float", r"^(?:[-+]?[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][-+][0-9]+)?$", list("-+.0123456789")),
    ("float", r"^[-+]?[0-9]+[eE]-[0-9]+$", list("-+0123456789")),
    ("float", r"^(?:[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$", list("-+.")),
    ("merge", r"^<<$", ["<"]),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(_pattern), _first)


@dataclass(frozen=True)
class YamlSource:
    """The data of a file and the line (from 1) on which each key or list item stands."""

    file: str
    text: str
    data: Any
    lines: dict[KeyPath, int]

    def line(self, path: KeyPath) -> int | None:
        """The line of `path`, or of the nearest thing around it; None where nothing is known."""
        for end in range(len(path), 0, -1):
            if path[:end] in self.lines:
                return self.lines[path[:end]]
        return None


def dotted(path: KeyPath) -> str:
    """A path as people write it: `include[0].decode.tp`; a key with a comma in it is quoted."""
    text = ""
    for key in path:
        if isinstance(key, int):
            text += f"[{key}]"
        else:
            text += ("." if text else "") + (f'"{key}"' if "," in key else key)
    return text


class _Builder:
    def __init__(self, file: str) -> None:
        self.file = file
        self.lines: dict[KeyPath, int] = {}
        self.open: list[int] = []
        self.nodes = 0

    def fail(self, node: yaml.Node, path: KeyPath, problem: str) -> ConfigError:
        return ConfigError(self.file, dotted(path), f"{problem} (line {node.start_mark.line + 1})")

    def build(self, node: yaml.Node, path: KeyPath) -> Any:
        if id(node) in self.open:
            raise self.fail(node, path, "an alias that contains itself")
        self.nodes += 1
        if self.nodes > MOST_NODES:
            raise self.fail(node, (), f"stands for more than {MOST_NODES} values, through its aliases")
        self.open.append(id(node))
        try:
            if isinstance(node, yaml.MappingNode):
                return self.mapping(node, path)
            if isinstance(node, yaml.SequenceNode):
                return [self.item(child, (*path, i)) for i, child in enumerate(node.value)]
            return self.scalar(node, path)
        finally:
            self.open.pop()

    def item(self, node: yaml.Node, path: KeyPath) -> Any:
        self.lines[path] = node.start_mark.line + 1
        return self.build(node, path)

    def mapping(self, node: yaml.MappingNode, path: KeyPath) -> dict[str, Any]:
        own: dict[str, Any] = {}
        merged: dict[str, Any] = {}
        for key_node, value_node in node.value:
            if key_node.tag == _MERGE:
                parts = value_node.value if isinstance(value_node, yaml.SequenceNode) else [value_node]
                for part in parts:
                    if not isinstance(part, yaml.MappingNode):
                        raise self.fail(part, path, "<< takes a mapping or a list of mappings")
                    for key, value in self.build(part, path).items():
                        merged.setdefault(key, value)
                continue
            key = self.key(key_node, path)
            if key in own:
                first = self.lines[(*path, key)]
                raise self.fail(key_node, (*path, key), f"given twice, first on line {first}; keep one")
            self.lines[(*path, key)] = key_node.start_mark.line + 1
            own[key] = self.build(value_node, (*path, key))
        return {**{k: v for k, v in merged.items() if k not in own}, **own}

    def key(self, node: yaml.Node, path: KeyPath) -> str:
        if not isinstance(node, yaml.ScalarNode) or node.tag == "tag:yaml.org,2002:null":
            raise self.fail(node, path, "a key must be plain text")
        if _UNPRINTABLE.search(node.value) or "\n" in node.value:
            raise self.fail(node, path, "a key with characters that cannot be printed on a line")
        return str(node.value)

    def scalar(self, node: yaml.Node, path: KeyPath) -> Any:
        tag, text = node.tag, node.value
        if _UNPRINTABLE.search(text):
            raise self.fail(node, path, "a value with characters that cannot be printed")
        if tag not in _TAGS:
            raise self.fail(node, path, f"the tag {tag} is not supported")
        if tag.endswith(":null"):
            return None
        if tag.endswith(":bool"):
            return text.lower() == "true"
        try:
            if tag.endswith(":int"):
                return int(text)
            if tag.endswith(":float"):
                return float(re.sub(r"\.(inf|nan)$", r"\1", text.lower()))
        except ValueError:
            raise self.fail(node, path, f"{text[:40]!r} is no number that can be read") from None
        return text


def parse_yaml(text: str, file: str) -> YamlSource:
    """Parse one document. Raises ConfigError for anything that is not one mapping of plain data."""
    try:
        node = _Loader(text).get_single_node()
    except RecursionError:
        raise ConfigError(file, "", "nested too deep") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f" (line {mark.line + 1})" if mark else ""
        raise ConfigError(file, "", f"not YAML: {error.problem or error.context}{where}") from None
    except yaml.YAMLError as error:
        raise ConfigError(file, "", f"not YAML: {' '.join(str(error).split())}") from None
    if node is None:
        raise ConfigError(file, "", "is empty")
    if not isinstance(node, yaml.MappingNode):
        raise ConfigError(file, "", "expected `key: value` lines at the top")
    builder = _Builder(file)
    try:
        data = builder.build(node, ())
    except RecursionError:
        raise ConfigError(file, "", "nested too deep") from None
    return YamlSource(file, text, data, builder.lines)


def read_yaml(path: str | Path) -> YamlSource:
    """Read a UTF-8 file. Raises Unreadable, and ConfigError when it is not one mapping of plain data."""
    file = str(path)
    try:
        text = Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise Unreadable(file, "", "no such file") from None
    except UnicodeDecodeError:
        raise Unreadable(file, "", "not a UTF-8 text file") from None
    except OSError as error:
        raise Unreadable(file, "", f"cannot be read: {error.strerror}") from None
    return parse_yaml(text, file)
