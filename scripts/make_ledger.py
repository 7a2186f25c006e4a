"""Write the rows of configs/tasks/ledger.jsonl: tables of deliveries, and a question about two lines of each.

    python scripts/make_ledger.py > configs/tasks/ledger.jsonl

Every text is made here from a seed, and none is anybody's.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator

ROWS = 200
EXAMPLES = 3
LINES = 16
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday")
PLACES = ("mill", "harbour", "school", "bakery", "station", "farm", "museum", "library")
GOODS = ("barrels", "crates", "sacks", "boxes", "bales")


def rows() -> Iterator[dict[str, str]]:
    """The examples, then the questions, all different; each asks for the sum of two lines of its table."""
    seen: set[str] = set()
    index = 0
    while len(seen) < EXAMPLES + ROWS:
        rng = random.Random(f"ledger/1/{index}")
        index += 1
        keys = rng.sample([(day, place) for day in DAYS for place in PLACES], k=LINES)
        what = rng.choice(GOODS)
        counts = [rng.randint(3, 98) for _ in keys]
        table = "\n".join(f"{day}, {place}: {n} {what}" for (day, place), n in zip(keys, counts, strict=True))
        one, two = rng.sample(range(LINES), k=2)
        named = [f"to the {keys[i][1]} on {keys[i][0]}" for i in (one, two)]
        question = f"How many {what} went {named[0]} and {named[1]} together?"
        if question in seen:
            continue
        seen.add(question)
        total = counts[one] + counts[two]
        answer = f"{counts[one]} + {counts[two]} = {total}.\n#### {total}"
        yield {"table": table, "question": question, "answer": answer}


if __name__ == "__main__":
    for row in list(rows())[EXAMPLES:]:
        print(json.dumps(row))
