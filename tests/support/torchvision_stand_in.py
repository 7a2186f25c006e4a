"""A stand-in for torchvision, which vLLM's file of Qwen3.5 imports and a model of text alone calls nothing of."""

from __future__ import annotations

from pathlib import Path

FILES = {
    "__init__.py": 'from torchvision import io, transforms\n\n__version__ = "0.28.0"\n',
    "io.py": "ImageReadMode = decode_image = None\n",
    "transforms/__init__.py": "from enum import Enum\n\n"
    'InterpolationMode = Enum("InterpolationMode", "NEAREST NEAREST_EXACT BOX BILINEAR HAMMING BICUBIC LANCZOS")\n',
    "transforms/functional.py": "pil_to_tensor = None\n",
    "transforms/v2/__init__.py": "",
    "transforms/v2/functional.py": "",
}
"""The names that transformers imports; none can be called."""


def write_stand_in(folder: Path) -> Path:
    """Write the package; what comes back goes into PYTHONPATH."""
    for name, text in FILES.items():
        file = folder / "torchvision" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    return folder
