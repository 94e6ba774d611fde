"""Everything that a GPU has to show, in one command and under six minutes: python scripts/gpu_check.py

Are the kernels right on this chip, how much of its memory bandwidth do they reach, how fast is the engine beside
transformers' `generate`, what do CUDA graphs bring, how much memory do paging and prefix caching save. Needs PyTorch,
Triton, transformers and numpy, and no network. Results go into a JSON file, which is written anew as they come in:
a failure half-way, Ctrl-C or a kill leaves what was found until then. A table comes last.

    --minutes 6    the whole command's time; what doesn't fit is listed as not run
    --only NAME    this section only; may be given several times
    --json FILE    where results go; else benchmarks/results/gpu-<name of the GPU>.json
    --dry-run      the same code without a GPU, on Triton's interpreter and tiny shapes; no figure is a measurement

Exit status: 0 where nothing failed, 1 where a check failed or a section broke off, 2 without a GPU, 130 after Ctrl-C.
The sections are in gpu_checks/, a file each.
"""

import sys
import time
from pathlib import Path

STARTED = time.monotonic()  # before anything slow is imported: that counts too

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    from gpu_checks.main import main

    sys.exit(main(sys.argv[1:], STARTED, __doc__))
