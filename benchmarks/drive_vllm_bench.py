"""`vllm bench serve` with its arguments, and at the end the CPU seconds of its requests alone as a line of JSON.

Run by the Python of an environment that holds vLLM. What it spends before the first request (imports, prompts) and
after the last answer (its statistics) is left out.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

from vllm.benchmarks import serve
from vllm.utils.argparse_utils import FlexibleArgumentParser

marks: list[float] = []


def marked(inner: Callable[..., Any]) -> Callable[..., Any]:
    def outer(*args: Any, **kwargs: Any) -> Any:
        marks.append(time.process_time())
        return inner(*args, **kwargs)

    return outer


def main() -> int:
    # The requests lie between these two calls of its own.
    serve.get_request = marked(serve.get_request)
    serve.calculate_metrics = marked(serve.calculate_metrics)
    parser = FlexibleArgumentParser()
    serve.add_cli_args(parser)
    result = serve.main(parser.parse_args())
    begin, end = marks
    print(json.dumps({"cpu_s": end - begin, "completed": result["completed"]}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
