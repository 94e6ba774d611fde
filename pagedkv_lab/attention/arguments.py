"""How Python hands a compiled kernel its arguments: one structure of addresses, and one of sizes.

Knows names and their order. Does not know tensors, nor numba; `numba_kernel.arguments` reads in the same order.
"""

import ctypes

#: Pieces (or merges) and their columns, queries, block tables and numbers from one to the next, T, Hq, slots of the
#: pool, block size, Hkv, D, Dv, the longest context, the sliding window, rows of the output.
SIZES = (
    "pieces", "columns", "queries", "tables", "table_stride", "tokens", "heads", "slots", "block_size", "kv_heads",
    "dim", "value_dim", "longest", "window", "rows",
)  # fmt: skip

#: Of what follows the sizes: scale and softcap (0 for none), a counter, and the arrays.
POINTERS = ("sizes", "scales", "counter", "pieces", "queries", "tables", "query", "keys", "values", "output", "lse")


class Sizes(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int64) for name in SIZES]


class Arguments(ctypes.Structure):
    """Addresses. They keep nothing alive: whoever fills this in must."""

    _fields_ = [(name, ctypes.c_void_p) for name in POINTERS]
