"""Atomic replacement of a local file."""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from pathlib import Path


def replace_file(target: Path, text: str, *, durable: bool = True) -> None:
    """Replace `target` with `text`; raises OSError, which leaves `target` unchanged.

    With `durable`, the text survives a crash of the machine; the file has mode 0600.
    """
    handle, temporary = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        Path(temporary).replace(target)
    except BaseException:
        with suppress(OSError):
            Path(temporary).unlink()
        raise
