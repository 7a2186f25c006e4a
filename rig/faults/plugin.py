"""What vLLM calls in each of its processes when it loads general plugins."""

from __future__ import annotations

import os
from pathlib import Path

from .control import ENVIRONMENT


def register() -> None:
    """Wrap the engine when PDRIG_FAULTS names a control file; otherwise do nothing and import nothing."""
    path = os.environ.get(ENVIRONMENT)
    if path:
        from .hooks import install

        install(Path(path))
