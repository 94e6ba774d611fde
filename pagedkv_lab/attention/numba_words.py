"""Four words that numba lacks and the kernels need, and how a kernel is compiled and kept.

Knows numba and LLVM. Does not know attention.
"""

import hashlib
import logging
import threading
from collections.abc import Callable
from functools import cache
from pathlib import Path

from llvmlite import ir
from numba import cfunc, types
from numba.core import cgutils
from numba.extending import intrinsic

logger = logging.getLogger(__name__)

#: Sums may be taken in any order, which is what lets a compiler use vector registers; NaN and infinity are honoured.
#: Everything is inlined into one function, where the compiler sees which arrays can't overlap.
OPTIONS = {"fastmath": {"reassoc", "contract", "arcp", "nsz"}, "error_model": "numpy", "forceinline": True}

_float32, _byte, _int32, _int64 = ir.FloatType(), ir.IntType(8), ir.IntType(32), ir.IntType(64)


@intrinsic
def fetch_add(typing_context, counter):
    """counter[0] += 1 as one indivisible step; returns the value before. counter: an int64 array."""

    def generate(context, builder, signature, args):
        array = cgutils.create_struct_proxy(signature.args[0])(context, builder, args[0])
        return builder.atomic_rmw("add", array.data, _int64(1), "monotonic")

    return types.int64(counter), generate


@intrinsic
def float_of_bits(typing_context, bits):
    """The float32 that has the bits of this int32."""

    def generate(context, builder, signature, args):
        return builder.bitcast(args[0], _float32)

    return types.float32(types.int32), generate


@intrinsic
def prefetch(typing_context, array, index):
    """Ask for the cache line of the element at flat `index`, to be brought into the L2 cache; don't wait for it."""

    def generate(context, builder, signature, args):
        data = cgutils.create_struct_proxy(signature.args[0])(context, builder, args[0]).data
        address = builder.bitcast(builder.gep(data, [args[1]]), _byte.as_pointer())
        word = ir.FunctionType(ir.VoidType(), [address.type, _int32, _int32, _int32])
        function = builder.module.declare_intrinsic("llvm.prefetch", (address.type,), word)
        # To be read; locality 2, which is the L2 cache, because the L1 is full of the tile in work; data.
        builder.call(function, [address, _int32(0), _int32(2), _int32(1)])
        return context.get_dummy_value()

    return types.void(array, types.int64), generate


@intrinsic
def scratch(typing_context, size):
    """`size` float32 on the stack of this thread, uninitialised, at a cache line; gone when the kernel returns.

    Not heap memory, for the compiler's sake: it knows that two arrays on the stack don't overlap, and need not check
    that a store to one has changed the other.
    """

    def generate(context, builder, signature, args):
        memory = builder.alloca(_float32, size=args[0])
        memory.align = 64
        return memory

    return types.CPointer(types.float32)(types.int64), generate


def address_of(function: Callable) -> int:
    """Compile `function`, of one pointer to an array of pointers, and return the address of the machine code.

    Compiled once a machine: numba keeps the code beside the function's file, or in the user's cache folder where that
    one is read-only, and compiles anew for another processor or when that file changes. It doesn't notice when a file
    changes that the function imports from, so the name under which it is kept has a digest of all in this folder.
    """
    function.__qualname__ = f"{function.__name__}_{_digest()}"
    signature = types.void(types.CPointer(types.voidptr))
    options = {**OPTIONS, "forceinline": False}
    notice = threading.Timer(2.0, _say_what_takes_so_long)
    notice.daemon = True
    notice.start()
    try:
        compiled = cfunc(signature, cache=True, **options)(function)
    except RuntimeError:  # there is no folder to keep it in
        compiled = cfunc(signature, **options)(function)
    finally:
        notice.cancel()
    _COMPILED.append(compiled)  # the code lives as long as this object does
    return compiled.address


_COMPILED = []


@cache
def _say_what_takes_so_long() -> None:
    logger.warning("compiling attention for this processor, once: up to half a minute")


@cache
def _digest() -> str:
    files = sorted(Path(__file__).parent.glob("*.py"))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:12]
