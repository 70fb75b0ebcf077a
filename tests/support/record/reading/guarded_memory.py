"""Memory that ends, or begins, where the process may not read or write: a crash instead of luck."""

from __future__ import annotations

import ctypes
import mmap

import numpy as np

_PAGE = mmap.PAGESIZE
_NO_ACCESS = 0
_LIBC = ctypes.CDLL(None, use_errno=True)


def guarded_array(size: int, dtype=np.uint8, *, at_end: bool = True):
    """Create an array with no accessible memory after it (or before it)."""
    dtype = np.dtype(dtype)
    count = size * dtype.itemsize
    pages = -(-count // _PAGE) * _PAGE
    memory = mmap.mmap(-1, pages + 2 * _PAGE)
    whole = np.frombuffer(memory, np.uint8)
    address = whole.ctypes.data
    for guard in (address, address + _PAGE + pages):
        if _LIBC.mprotect(ctypes.c_void_p(guard), ctypes.c_size_t(_PAGE), _NO_ACCESS):
            raise OSError(ctypes.get_errno(), "mprotect")
    start = _PAGE + (pages - count if at_end else 0)
    return whole[start : start + count].view(dtype)
