"""The baseline that the article calls traditional: every request reserves room for the longest one.

The same runner, the same scheduler. A contiguous reservation of `max_model_len` slots is a paged cache whose
one block is as long as the longest sequence, so that is all there is to say: admission takes a whole row,
nothing is shared, and what a short request doesn't use nobody else can.
"""

from typing import Any

from pagedkv_lab.engine.engine import Engine
from pagedkv_lab.engine.models import LoadedModel, load_model


class ContiguousEngine(Engine):
    """An engine without paging. Takes Engine's options, except block_size and enable_prefix_caching.

    num_gpu_blocks counts rows of max_model_len slots here. With n > 1, each further sequence copies the
    row before it first writes.

    Raises ValueError for the options that make no sense without paging, and for kv_cache_dtype "int4".
    """

    def __init__(self, model: LoadedModel | Any = None, *, max_model_len: int | None = None, **options: Any):
        for name in ("block_size", "enable_prefix_caching", "parts"):
            if name in options:
                raise ValueError(f"{name} means nothing to the contiguous engine: it reserves max_model_len slots")
        if options.get("kv_cache_dtype") == "int4":
            raise ValueError(
                "kv_cache_dtype 'int4' quantizes a block when it is full, and a reserved row hardly ever is: "
                "take 'int8' or 'auto' for the contiguous engine"
            )
        if model is None or isinstance(model, str):
            model = load_model(model)
        if max_model_len is None:
            max_model_len = LoadedModel(getattr(model, "hf", model), None, "").max_model_len
        super().__init__(
            model, max_model_len=max_model_len, block_size=max_model_len, enable_prefix_caching=False, **options
        )
