"""Write GSM8K from the hub as train.jsonl and test.jsonl, the layout that `--data DIR` reads.

python scripts/fetch_gsm8k.py DIR
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from datasets import load_dataset


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for split in ("train", "test"):
        rows = load_dataset("openai/gsm8k", "main", split=split)
        lines = (json.dumps({"question": row["question"], "answer": row["answer"]}) + "\n" for row in rows)
        (folder / f"{split}.jsonl").write_text("".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
