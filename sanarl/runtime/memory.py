"""Memory of this machine."""

import re
from pathlib import Path


def free_memory(file: Path = Path("/proc/meminfo")) -> int | None:
    """Bytes of host memory that can be had without swapping; None where the system does not say."""
    try:
        found = re.search(r"^MemAvailable:\s+(\d+) kB$", file.read_text(encoding="ascii"), re.MULTILINE)
    except OSError:
        return None
    return int(found[1]) * 1024 if found else None
