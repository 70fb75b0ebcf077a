"""The building blocks of the kernels: memory access by address, copying, and the decorator.

The functions whose names begin with `load_` and `store_` become one machine instruction each and
check nothing. A kernel may use them only on data that `RecordColumns` or the kernel itself has
checked, or below a slot's or a buffer's limit. Numbers in a record batch are big-endian or
variable-length; those in Arrow's buffers have native byte order, which is little-endian on every
machine that numba supports.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from llvmlite import ir
from numba import njit, types
from numba.core import cgutils, config
from numba.extending import intrinsic

from spark_kafka_sink.record.kernel.kernel_cache import enable_cache

if TYPE_CHECKING:
    from collections.abc import Callable

_Function = TypeVar("_Function", bound="Callable[..., Any]")

_BYTE_BITS: Final = 8
_INT64_BITS: Final = 64


def kernel(signature: Any) -> Callable[[_Function], _Function]:
    """Compile a function for this one signature at once, or load it from the cache.

    It runs without the GIL. Raises ImportError if numba's compiler is disabled.
    """
    if getattr(config, "DISABLE_JIT", False):
        raise ImportError(
            "NUMBA_DISABLE_JIT is set, but records are written by compiled code: unset it"
        )

    def compile_kernel(function: _Function) -> _Function:
        dispatcher: Any = njit(nogil=True)(function)
        enable_cache(dispatcher)
        dispatcher.compile(signature)
        dispatcher.disable_compile()
        return cast("_Function", dispatcher)

    return compile_kernel


def kernel_part(function: _Function) -> _Function:
    """Compile a function together with the kernels that call it."""
    return cast("_Function", njit(function))


def inlined_part(function: _Function) -> _Function:
    """Inline a function into its callers, however large it is: for loops that run per row."""
    return cast("_Function", njit(inline="always")(function))


def _load(numba_type: Any, bits: int) -> Callable[[int], int]:
    def load(_typing_context: Any, _address: Any) -> Any:
        def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            pointer = builder.inttoptr(arguments[0], ir.IntType(bits).as_pointer())
            # Numbers in records and sliced columns are not aligned.
            return builder.load(pointer, align=1)

        return numba_type(types.int64), generate

    return cast("Callable[[int], int]", intrinsic(load))


load_uint8 = _load(types.uint8, 8)
load_int32 = _load(types.int32, 32)
load_uint32 = _load(types.uint32, 32)
load_int64 = _load(types.int64, 64)


def _load_as_int64(bits: int, *, signed: bool) -> Callable[[int], int]:
    def load(_typing_context: Any, _address: Any) -> Any:
        def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            pointer = builder.inttoptr(arguments[0], ir.IntType(bits).as_pointer())
            number = builder.load(pointer, align=1)
            if bits > _BYTE_BITS:
                number = builder.bswap(number)
            extend = builder.sext if signed else builder.zext
            return number if bits == _INT64_BITS else extend(number, ir.IntType(_INT64_BITS))

        return types.int64(types.int64), generate

    return cast("Callable[[int], int]", intrinsic(load))


#: Load an unsigned byte as 64 bits, with which the compiler calculates without conversions.
load_byte = _load_as_int64(8, signed=False)
#: Load a number of a batch's header, which is big-endian, as 64 bits.
load_big_int16 = _load_as_int64(16, signed=True)
load_big_int32 = _load_as_int64(32, signed=True)
load_big_uint32 = _load_as_int64(32, signed=False)
load_big_int64 = _load_as_int64(64, signed=True)


def _move(count: int) -> Callable[[int, int], None]:
    def move(_typing_context: Any, _target: Any, _source: Any) -> Any:
        def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            pointer = ir.IntType(8 * count).as_pointer()
            target, source = (builder.inttoptr(argument, pointer) for argument in arguments)
            builder.store(builder.load(source, align=1), target, align=1)

        return types.void(types.int64, types.int64), generate

    return cast("Callable[[int, int], None]", intrinsic(move))


#: Copy this many bytes to the first address from the second.
move_byte = _move(1)
move_4_bytes = _move(4)
move_8_bytes = _move(8)
move_16_bytes = _move(16)


def _store(numba_type: Any, bits: int) -> Callable[[int, int], None]:
    def store(_typing_context: Any, _address: Any, _value: Any) -> Any:
        def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            pointer = builder.inttoptr(arguments[0], ir.IntType(bits).as_pointer())
            builder.store(arguments[1], pointer, align=1)

        return types.void(types.int64, numba_type), generate

    return cast("Callable[[int, int], None]", intrinsic(store))


#: Write the number `value` at `address`.
store_uint8 = _store(types.uint8, 8)
store_int32 = _store(types.int32, 32)
store_int64 = _store(types.int64, 64)


def _copy_bytes(_typing_context: Any, _target: Any, _source: Any, _count: Any) -> Any:
    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        byte_pointer = ir.IntType(8).as_pointer()
        cgutils.raw_memcpy(  # type: ignore[no-untyped-call]
            builder,
            builder.inttoptr(arguments[0], byte_pointer),
            builder.inttoptr(arguments[1], byte_pointer),
            arguments[2],
            1,
        )

    return types.void(types.int64, types.int64, types.int64), generate


def _significant_bits(_typing_context: Any, _value: Any) -> Any:
    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        zeros = builder.ctlz(arguments[0], ir.Constant(ir.IntType(1), 0))
        return builder.sub(ir.Constant(ir.IntType(64), 64), zeros)

    return types.int64(types.int64), generate


#: Copy `count` bytes to `target` from `source`; the two must not overlap.
copy_bytes = cast("Callable[[int, int, int], None]", intrinsic(_copy_bytes))
#: Count the bits of an unsigned number without its leading zeros.
significant_bits = cast("Callable[[int], int]", intrinsic(_significant_bits))
