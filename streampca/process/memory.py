"""The C library's reuse of freed memory."""

import contextlib
import ctypes

# glibc's M_MMAP_THRESHOLD and M_TRIM_THRESHOLD (malloc.h), bytes. Its own, smaller defaults cost a sixth of the time
# that it takes to read vectors of 3072 floats. What is larger than a batch goes back to the system: kept among small
# pieces, a few large records took 120 MiB more.
_MALLOC_OPTIONS = {-3: 8 * 2**20, -1: 64 * 2**20}


def keep_freed_memory() -> None:
    """Make the C library reuse the memory of one batch for the next, instead of returning it to the system."""
    with contextlib.suppress(AttributeError, OSError):  # another C library
        libc = ctypes.CDLL(None)
        for option, size in _MALLOC_OPTIONS.items():
            libc.mallopt(option, size)
