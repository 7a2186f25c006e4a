"""The GSM8K files: from a folder, or from the hub through `datasets`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from evals.errors import DataError

HUB_NAME = "openai/gsm8k"
SPLITS: tuple[Literal["train", "test"], ...] = ("train", "test")


@dataclass(frozen=True)
class Row:
    """One question with its worked answer; `where` names its place for messages."""

    question: str
    answer: str
    where: str


def load_gsm8k(folder: Path | None) -> tuple[list[Row], list[Row]]:
    """Train and test rows in file order, from `folder`/{train,test}.jsonl or else from the hub.

    Raises DataError, naming file, line and what was expected.
    """
    if folder is None:
        train, test = _from_hub()
    else:
        train, test = (_from_file(folder / f"{split}.jsonl") for split in SPLITS)
    return train, test


def _from_file(path: Path) -> list[Row]:
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except FileNotFoundError:
        raise DataError(f"{path}: no such file; --data must name a folder with train.jsonl and test.jsonl") from None
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read: {error}") from None
    rows = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        where = f"{path}:{number}"
        try:
            data = json.loads(line)
        except ValueError:
            raise DataError(f"{where}: not JSON; expected an object with `question` and `answer`") from None
        rows.append(_row(data, where))
    if not rows:
        raise DataError(f"{path}: empty; expected one JSON object a line with `question` and `answer`")
    return rows


def _from_hub() -> tuple[list[Row], list[Row]]:
    try:
        import datasets

        data = datasets.load_dataset(HUB_NAME, "main")
        train, test = (
            [_row(row, f"{HUB_NAME} {split} row {i}") for i, row in enumerate(data[split])] for split in SPLITS
        )
    except DataError:
        raise
    except Exception as error:
        # `datasets` raises whatever its many back ends raise.
        reason = " ".join(str(error).split())[:200]
        raise DataError(
            f"{HUB_NAME} could not be loaded from the hub ({type(error).__name__}: {reason}); "
            "pass --data DIR with train.jsonl and test.jsonl"
        ) from None
    return train, test


def _row(data: Any, where: str) -> Row:
    if not isinstance(data, dict):
        raise DataError(f"{where}: expected an object with `question` and `answer`, found {type(data).__name__}")
    for key in ("question", "answer"):
        value = data.get(key)
        if not isinstance(value, str) or not value.strip():
            problem = "is missing" if key not in data else "is not a text" if not isinstance(value, str) else "is empty"
            raise DataError(f"{where}: `{key}` {problem}; expected an object with `question` and `answer`")
        if any("\ud800" <= c <= "\udfff" for c in value):
            raise DataError(f"{where}: `{key}` holds half of a surrogate pair, which no request can carry")
    return Row(data["question"], data["answer"], where)
