"""Compiles the CPU kernels before anybody waits for them; `make` runs it as a module when it sets up.

Knows which kernels there are. Does not know what they compute. Without numba there is nothing to do.
"""

from pagedkv_lab.attention.numba_paged import HAS_NUMBA


def compile_kernels() -> None:
    """Compile all kernels for float32 and bfloat16. What was compiled before on this machine is only looked up."""
    if not HAS_NUMBA:
        return
    from pagedkv_lab.attention.numba_kernel import decode_kernel, merge_kernel
    from pagedkv_lab.attention.numba_prefill import prefill_kernel
    from pagedkv_lab.engine.glue_kernels import rms_norm_kernel, silu_times_kernel

    merge_kernel()
    for kernel in (decode_kernel, prefill_kernel, rms_norm_kernel, silu_times_kernel):
        for bfloat16 in (False, True):
            kernel(bfloat16)


if __name__ == "__main__":
    compile_kernels()
