"""How much RAM is free. Knows the operating system; psutil where it is there, since it knows all of them."""

import re
from pathlib import Path


def free_ram() -> int:
    """Bytes that can be had without swapping. Without psutil this is Linux only: what /proc/meminfo says.

    Raises ModuleNotFoundError elsewhere, where psutil is missing.
    """
    try:
        import psutil
    except ModuleNotFoundError:
        meminfo = Path("/proc/meminfo")
        if not meminfo.exists():
            raise
        return 1024 * int(re.search(r"MemAvailable:\s+(\d+) kB", meminfo.read_text()).group(1))
    return psutil.virtual_memory().available
