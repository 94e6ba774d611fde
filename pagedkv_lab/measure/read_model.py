"""Find a model by name or on disk and say how large it is. No weights are loaded or downloaded.

Knows configs and the headers of safetensors files. Does not know blocks or budgets: that is `plan.py`.
"""

import difflib
import json
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pagedkv_lab.measure.empty_model import size_by_building
from pagedkv_lab.measure.model_size import KVLayers, ModelSize
from pagedkv_lab.sizing import BUILT_IN_SHAPES, ModelShape


def read_model_size(model: str | Path) -> ModelSize:
    """The size of a built-in shape (by name, any case) or of a config.json or its folder.

    Raises ValueError, in one line, for an unknown name, an unreadable config and a model without a KV cache.
    """
    for name, shape in BUILT_IN_SHAPES.items():
        if name.lower() == str(model).lower():
            return _from_shape(shape, "counted from the published config")
    path = Path(model)
    if not path.exists():
        raise ValueError(_unknown(str(model)))
    file = path / "config.json" if path.is_dir() else path
    config = _read_config(file)
    name = file.resolve().parent.name if file.name == "config.json" else file.stem
    size = size_by_building(name, config) or _from_fields(name, config, file.parent)
    return replace(size, stored_bytes=_stored_bytes(file.parent))


def _unknown(model: str) -> str:
    """Why `model` was not found, with the nearest built-in name."""
    by_lower = {name.lower(): name for name in BUILT_IN_SHAPES}
    last = model.rstrip("/\\").replace("\\", "/").rpartition("/")[2].lower()
    near = difflib.get_close_matches(last, by_lower, n=1, cutoff=0.5)
    hint = f"Did you mean {by_lower[near[0]]}? " if near else ""
    return (
        f"{hint}No built-in shape and no file is called {model!r}: name one of "
        f"{', '.join(BUILT_IN_SHAPES)}, or the path of a config.json or its folder"
    )


def _read_config(file: Path) -> Mapping[str, Any]:
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"{file} can't be read: {error.strerror}") from None
    except (ValueError, RecursionError):  # bad JSON and bad UTF-8 are both ValueErrors
        raise ValueError(f"{file} is not a model config: it is not JSON") from None
    if not isinstance(config, dict):
        raise ValueError(f"{file} is not a model config: its JSON is not an object")
    if config.get("is_encoder_decoder"):
        raise ValueError(f"{file} is not a decoder's config: it is an encoder-decoder model's")
    return config


def _from_fields(name: str, config: Mapping[str, Any], folder: Path) -> ModelSize:
    """The size by the config's fields alone: where transformers is missing or can't build the model.

    Parameters are counted in the safetensors files beside the config, or else as if it were a Llama.
    """
    classes = str(config.get("architectures") or "")
    if classes and not any(word in classes for word in ("CausalLM", "LMHead", "ConditionalGeneration")):
        raise ValueError(f"{name} is not a decoder's config: its architectures are {classes}")
    config = config["text_config"] if isinstance(config.get("text_config"), dict) else config
    if not isinstance(config.get("intermediate_size"), int):  # no Llama's MLP, so not to be counted as one
        config = {key: value for key, value in config.items() if key != "intermediate_size"}
    try:
        shape = ModelShape.from_config(config, name)
    except (TypeError, KeyError, ZeroDivisionError, AttributeError) as error:
        raise ValueError(f"{name} is not a decoder's config: {type(error).__name__} on {error}") from None
    numbers = (shape.num_hidden_layers, shape.num_attention_heads, shape.num_key_value_heads, shape.head_dim)
    if not all(isinstance(n, int) and n > 0 for n in (*numbers, shape.max_position_embeddings)):
        raise ValueError(f"{name} is not a decoder's config: its layers, heads and sizes are not all above 0")
    size = _from_shape(shape, "counted as a Llama's, from the config's fields")
    size = replace(size, notes=("transformers is missing or can't build this model: its config is believed",))
    if files := sorted(folder.glob("*.safetensors")):
        counted = sum(map(_parameters_in, files))
        return replace(size, num_parameters=counted, parameters_from="counted in its safetensors files")
    if size.num_parameters is None and not _stored_bytes(folder):
        raise ValueError(
            f"{name}: the number of its parameters is unknown: transformers is missing or can't build it, it "
            "is not shaped like a Llama, and no safetensors files lie beside its config"
        )
    return size


def _stored_bytes(folder: Path) -> int | None:
    """Bytes of the weights as stored: what the safetensors index says, or else the files' own sizes."""
    try:
        index = json.loads((folder / "model.safetensors.index.json").read_text(encoding="utf-8"))
        return int(index["metadata"]["total_size"])
    except (OSError, ValueError, KeyError, TypeError):
        return sum(file.stat().st_size for file in folder.glob("*.safetensors")) or None


def _parameters_in(file: Path) -> int:
    """Numbers in a safetensors file, from its header: 8 bytes of length, then JSON of shapes."""
    try:
        with file.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            header = json.loads(stream.read(min(length, file.stat().st_size)))
        return sum(math.prod(tensor["shape"]) for key, tensor in header.items() if key != "__metadata__")
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise ValueError(f"{file} is not a safetensors file") from None


def _from_shape(shape: ModelShape, parameters_from: str) -> ModelSize:
    layers = KVLayers(shape.num_hidden_layers, shape.num_key_value_heads, shape.head_dim, shape.head_dim)
    return ModelSize(
        name=shape.name,
        attention=shape.attention_kind,
        kv_layers=(layers,),
        num_parameters=shape.num_parameters,
        parameters_from=parameters_from,
        stored_bytes=None,
        max_model_len=shape.max_position_embeddings,
    )
