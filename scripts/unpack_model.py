"""Unpacks the bundled model into the user's cache folder, so that nobody waits for it in the first notebook.

`make` runs it when it sets up. Silent where that has been done before. Where it can't be done now it says why in one
sentence; the first `load_model()` tries again, so the set-up is not in vain.
"""

import os

from pagedkv_lab.bundled import BUNDLED_MODEL, bundled_gguf, dense_copy_path
from pagedkv_lab.errors import ModelUnavailable


def main() -> None:
    gguf = bundled_gguf()
    if gguf is not None and dense_copy_path(gguf).is_dir():
        return
    os.environ |= {"HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1"}  # both are read when transformers is imported
    from pagedkv_lab.engine import load_model

    try:
        load_model(BUNDLED_MODEL, device="cpu")
    except ModelUnavailable as error:
        print(f"       {error}.")


if __name__ == "__main__":
    main()
