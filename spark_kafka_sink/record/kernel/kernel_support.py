"""The building blocks of the kernels: memory access by address, copying, and the decorators.

The functions whose names begin with `load_` and `store_` become one machine instruction each and
check nothing. A kernel may use them only on data that `RecordColumns` or the kernel itself has
checked, or below a slot's or a buffer's limit. Numbers in a record batch are big-endian or
variable-length; those in Arrow's buffers have native byte order, which is little-endian on every
machine that numba supports.

A kernel's machine code is loaded from the cache when its module is imported, by llvmlite alone:
numba's import takes longer than a small write. Only what is not cached is compiled, by
`kernel_compiler`.
"""

from __future__ import annotations

import ctypes
import threading
from contextlib import suppress
from functools import cache, cached_property
from types import FunctionType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, TypeVar, cast

from llvmlite import binding

from spark_kafka_sink.record.kernel.kernel_cache import read_code, write_code

if TYPE_CHECKING:
    from collections.abc import Callable

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


_Function = TypeVar("_Function", bound="Callable[..., Any]")

#: All kernels of the imported modules.
KERNELS: Final[list[Kernel]] = []


class Part:
    """A function that is compiled together with the kernels that call it.

    Called from Python, it is compiled by itself and not cached.
    """

    def __init__(self, function: Callable[..., Any], **options: Any) -> None:
        self._function = function
        self._options = options
        self.__doc__ = function.__doc__

    @cached_property
    def compiled(self) -> Any:
        """The function as numba calls it from other compiled functions."""
        from spark_kafka_sink.record.kernel.kernel_compiler import compiled_part

        return compiled_part(self.bound(), **self._options)

    def bound(self) -> FunctionType:
        """Return the function with compiled parts in place of those that its module names."""
        function = cast("FunctionType", self._function)
        names = {
            name: value.compiled if isinstance(value, Part) else value
            for name, value in function.__globals__.items()
            if name in function.__code__.co_names
        }
        return FunctionType(function.__code__, names, function.__name__)

    def __call__(self, *arguments: Any) -> Any:
        """Call the compiled function."""
        return self.compiled(*arguments)


class Instruction(Part):
    """A function of `kernel_compiler`'s own making, named by what makes it and its arguments."""

    def __init__(self, maker: str, *arguments: Any) -> None:
        self._maker = maker
        self._arguments = arguments

    @cached_property
    def compiled(self) -> Any:
        """The function as numba calls it from other compiled functions."""
        from spark_kafka_sink.record.kernel import kernel_compiler

        return getattr(kernel_compiler, self._maker)(*self._arguments)


class Kernel(Part):
    """A compiled function that Python calls. It runs without the GIL.

    Integers and arrays are passed by position; arrays must have the declared number of dimensions
    and size of items, and be contiguous. Returns an integer, a tuple of them, or None.
    """

    def __init__(
        self, function: Callable[..., Any], results: int, parameters: tuple[Parameter, ...]
    ) -> None:
        super().__init__(function)
        self.results = results
        self.parameters = parameters
        #: Unique among the kernels, also as the name of a file and of a function in C.
        self.name = f"{function.__module__}.{function.__qualname__}".replace(".", "_")
        code = read_code(self.name)
        #: Whether this process has compiled it, and not loaded it.
        self.was_compiled = code is None
        if code is None:
            from spark_kafka_sink.record.kernel.kernel_compiler import compiled_kernel

            code = compiled_kernel(self.name, self.bound(), results, parameters)
            write_code(self.name, code)
        prototype = ctypes.CFUNCTYPE(
            ctypes.c_int32,
            ctypes.c_void_p,  # the results
            ctypes.c_void_p,  # an exception of numba's, which has no meaning here
            *(ctypes.c_int64 if parameter is int else ctypes.py_object for parameter in parameters),
        )
        self._native = prototype(load_code(self.name, code))
        self._results_type: Any = ctypes.c_int64 * max(results, 1)

    def __call__(self, *arguments: Any) -> Any:
        """Call the machine code; TypeError for arrays of another layout."""
        results, exception = self._results_type(), ctypes.c_void_p()
        if self._native(ctypes.addressof(results), ctypes.addressof(exception), *arguments):
            raise TypeError(f"{self.name} got arguments that it cannot handle")
        if self.results > 1:
            return tuple(results)
        return results[0] if self.results else None


def kernel(results: int, *parameters: Parameter) -> Callable[[_Function], _Function]:
    """Compile a function with so many integers as results at once, or load it from the cache.

    Raises ImportError if it has to be compiled and numba's compiler is disabled.
    """

    def make_kernel(function: _Function) -> _Function:
        made = Kernel(function, results, parameters)
        KERNELS.append(made)
        return cast("_Function", made)

    return make_kernel


def kernel_part(function: _Function) -> _Function:
    """Compile a function together with the kernels that call it."""
    return cast("_Function", Part(function))


def inlined_part(function: _Function) -> _Function:
    """Inline a function into its callers, however large it is: for loops that run per row."""
    return cast("_Function", Part(function, inline="always"))


def instruction(maker: str, *arguments: Any) -> Callable[..., int]:
    """Return an instruction that a function of `kernel_compiler` makes when it is first needed."""
    return cast("Callable[..., int]", Instruction(maker, *arguments))


load_uint8 = instruction("load", "uint8")
load_int32 = instruction("load", "int32")
load_uint32 = instruction("load", "uint32")
load_int64 = instruction("load", "int64")
#: Load an unsigned byte as 64 bits, with which the compiler calculates without conversions.
load_byte = instruction("load_big_endian", "uint8")
#: Load a number of a batch's header, which is big-endian, as 64 bits.
load_big_int16 = instruction("load_big_endian", "int16")
load_big_int32 = instruction("load_big_endian", "int32")
load_big_uint32 = instruction("load_big_endian", "uint32")
load_big_int64 = instruction("load_big_endian", "int64")


#: Copy this many bytes to the first address from the second.
move_byte = instruction("move", 1)
move_4_bytes = instruction("move", 4)
move_8_bytes = instruction("move", 8)
move_16_bytes = instruction("move", 16)


#: Write the number `value` at `address`.
store_uint8 = instruction("store", "uint8")
store_int32 = instruction("store", "int32")
store_int64 = instruction("store", "int64")

#: Write the integer `value` at `address` as a floating-point number.
store_as_float32 = instruction("store_as", "float32")
store_as_float64 = instruction("store_as", "float64")
#: Write the number of 32 bits at the second address to the first, as one of 64.
widen_float = instruction("widen")

#: Copy `count` bytes to `target` from `source`; the two must not overlap.
copy_bytes = instruction("copy")
#: Count the bits of an unsigned number without its leading zeros.
significant_bits = instruction("count_bits")
#: Return the upper 64 bits of the product of two unsigned numbers.
multiply_high = instruction("multiply")
#: Calculate with unsigned numbers of 64 bits, or with words of bytes: what overflows is dropped.
add_words = instruction("wrap", "add")
subtract_words = instruction("wrap", "sub")
multiply_words = instruction("wrap", "mul")
