"""Everything the evaluator raises on purpose.

EvalError
+-- DataError      task data that is missing or malformed
+-- UnknownTask    no task of that name
+-- BadParams      a number of questions, shots or a request parameter that makes no sense
`-- BadTarget      a server address that cannot be used
"""

from __future__ import annotations


class EvalError(Exception):
    """Base of all; `str(error)` is one line that says what to change."""


class DataError(EvalError):
    pass


class UnknownTask(EvalError):
    pass


class BadParams(EvalError):
    pass


class BadTarget(EvalError):
    pass
