"""The machine code of kernels in this process: LLVM's target, and the engine that links code.

It needs llvmlite alone, since numba's import takes longer than a small write.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from llvmlite import binding

if TYPE_CHECKING:
    import numpy as np

#: Threads that import kernels at once must not make two engines: the code of one would be released.
_LOADING: Final = threading.Lock()


class Items(NamedTuple):
    """The type of a parameter: a contiguous numpy array."""

    dtype: np.dtype[Any]
    dimensions: int = 1


#: The type of a kernel's parameter: a signed number of 64 bits, or an array.
Parameter: TypeAlias = "type[int] | Items"


def target_machine(**options: Any) -> Any:
    """Return a machine for which LLVM can make code that this process loads."""
    with suppress(RuntimeError):  # It is an error from llvmlite 0.45 on, which needs it no more.
        binding.initialize()
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    target = binding.Target.from_default_triple()
    return target.create_target_machine(codemodel="jitdefault", jit=True, **options)


@cache
def _engine() -> Any:
    return binding.create_mcjit_compiler(binding.parse_assembly(""), target_machine())


def load_code(name: str, code: bytes) -> int:
    """Load an object file; return the address of its function, which stays for good.

    LLVM ends the process if the file is damaged, or calls a function that this process lacks.
    """
    with _LOADING:
        engine = _engine()
        engine.add_object_file(binding.ObjectFileRef.from_data(code))
        engine.finalize_object()
        address: int = engine.get_function_address(name)
        return address
