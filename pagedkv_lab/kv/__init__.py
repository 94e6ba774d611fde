"""The pool's tensors: where keys and values lie. Knows slots and layers, not who owns them."""

from pagedkv_lab.kv.pool import KVPool, LayerShape
from pagedkv_lab.kv.quantized import QuantizedKVPool, QuantizedLayer, QuantizedTensor

__all__ = ["KVPool", "LayerShape", "QuantizedKVPool", "QuantizedLayer", "QuantizedTensor"]
