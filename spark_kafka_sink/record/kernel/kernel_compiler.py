"""The compilation of kernels by numba, which only runs for kernels that are not cached.

A kernel becomes an object file with one function of C's calling convention. Its arguments are the
address of the results, the address of a pointer for numba's exceptions, and for each parameter an
integer or the address of numpy's array object. It returns 0, or another number for an exception.
"""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from llvmlite import binding, ir
from numba import from_dtype, njit, types
from numba.core import cgutils, config
from numba.extending import intrinsic
from numba.np.arrayobj import populate_array

from spark_kafka_sink.record.kernel.kernel_support import Items, Parameter, target_machine

if TYPE_CHECKING:
    from collections.abc import Callable


_INT64: Final = ir.IntType(64)
#: Where numpy's PyArrayObject has the data's address, the number of dimensions, and the addresses
#: of shape and strides.
_DATA: Final = 16
_DIMENSIONS: Final = 24
_SHAPE: Final = 32
_STRIDES: Final = 40
#: The functions of C's library that LLVM calls.
_LIBRARY: Final = frozenset({"memcpy", "memmove", "memset"})
_ASK_FOR_PROCESSOR: Final = """
import sys
from spark_kafka_sink.record.kernel.kernel_support import target_machine
target_machine(cpu=sys.argv[1])
"""
_ASK_SECONDS: Final = 60
#: What LLVM writes if it does not know a processor; and for "help", which prints all names.
_UNKNOWN_PROCESSOR: Final = (b"is not a recognized processor", b"Available CPUs")


def compiled_part(function: Callable[..., Any], **options: Any) -> Any:
    """Return a function that other compiled functions can call.

    Raises ImportError if numba's compiler is disabled, or told a processor that LLVM does not know.
    """
    if getattr(config, "DISABLE_JIT", False):
        raise ImportError(
            "NUMBA_DISABLE_JIT is set, but records are written by compiled code: unset it"
        )
    _check_processor()
    # Without reference counts, the code calls nothing of numba's.
    return njit(**options, _nrt=False)(function)  # type: ignore[call-overload]


@cache
def _check_processor() -> None:
    """Raise ImportError if numba is told to compile for a processor that LLVM does not know."""
    name = config.CPU_NAME  # type: ignore[attr-defined]
    if name in {None, "generic", binding.get_host_cpu_name()} or _is_known(name):
        return
    raise ImportError(
        f"LLVM does not know the processor {name!r} of NUMBA_CPU_NAME: set it to 'generic', or to "
        f"a name that `clang --print-supported-cpus` prints, or unset it to compile for this "
        f"processor, {binding.get_host_cpu_name()!r}"
    )


def _is_known(name: str) -> bool:
    """Return whether LLVM knows a processor; True if it cannot be asked.

    LLVM ignores an unknown name, and says so only on stderr, once or more for each function. So a
    process whose stderr is a pipe asks, since other threads may write to that of this process.
    """
    try:
        asked = subprocess.run(  # noqa: S603  our own interpreter and code
            [sys.executable or "", "-P", "-c", _ASK_FOR_PROCESSOR, name],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            timeout=_ASK_SECONDS,
        )
    except (OSError, subprocess.SubprocessError):
        return True
    return not any(words in asked.stderr for words in _UNKNOWN_PROCESSOR)


def compiled_kernel(
    name: str, function: Callable[..., Any], results: int, parameters: tuple[Parameter, ...]
) -> bytes:
    """Compile a function of these parameters; return an object file whose function has this name.

    `results` is the number of integers that the function returns.
    """
    entry = _entry(compiled_part(function), parameters, returns=results > 0)
    compiled_entry = compiled_part(entry, no_cpython_wrapper=True, no_cfunc_wrapper=True)
    compiled_entry.compile(_results_type(results)(*(types.int64,) * len(parameters)))
    (compiled,) = compiled_entry.overloads.values()
    module = binding.parse_assembly(compiled_entry.inspect_llvm(compiled.signature.args))
    for called in module.functions:
        if called.name == compiled.fndesc.llvm_func_name:
            called.name = name
        elif not called.is_declaration:
            called.linkage = "internal"
        elif not called.name.startswith("llvm.") and called.name not in _LIBRARY:
            raise ImportError(f"{name} calls {called.name}, which not every process has")
    _, cpu, features = compiled.target_context.codegen().magic_tuple()
    code: bytes = target_machine(cpu=cpu, features=features, opt=3).emit_object(module)
    return code


def _results_type(results: int) -> Any:
    if results > 1:
        return types.UniTuple(types.int64, results)  # type: ignore[no-untyped-call]
    return types.int64 if results else types.void


def _entry(kernel: Any, parameters: tuple[Parameter, ...], *, returns: bool) -> Callable[..., Any]:
    """Return a function of integers that calls the kernel with the arrays at their addresses."""
    names: dict[str, Any] = {"kernel": kernel, "is_array": _is_array()}
    addresses, arguments, checks = [], [], ["True"]
    for number, parameter in enumerate(parameters):
        name = f"argument_{number}"
        addresses.append(name)
        if isinstance(parameter, Items):
            names[f"array_{number}"] = _array_at(parameter)
            arguments.append(f"array_{number}({name})")
            size = parameter.dtype.itemsize
            checks.append(f"is_array({name}, {parameter.dimensions}, {size})")
        else:
            arguments.append(name)
    source = (
        f"def entry({', '.join(addresses)}):\n"
        f"    if not ({' and '.join(checks)}):\n"
        f"        raise TypeError\n"
        f"    {'return ' if returns else ''}kernel({', '.join(arguments)})\n"
    )
    exec(source, names)  # noqa: S102  made of numbers and the names above
    entry: Callable[..., Any] = names["entry"]
    return entry


@cache
def _is_array() -> Any:
    """Return a function that checks numpy's array object at an address."""
    load_int32, load_int64 = load("int32"), load("int64")

    def is_array(array: int, dimensions: int, item_bytes: int) -> bool:
        """Return whether the array is contiguous, with items of this size."""
        if load_int32(array + _DIMENSIONS) != dimensions:
            return False
        shape, strides = load_int64(array + _SHAPE), load_int64(array + _STRIDES)
        expected = item_bytes
        for dimension in range(dimensions - 1, -1, -1):
            count = load_int64(shape + 8 * dimension)
            # The last stride is also the size of the items, which a single one must have.
            needed = 0 if dimension == dimensions - 1 else 1
            if count > needed and load_int64(strides + 8 * dimension) != expected:
                return False
            expected *= count
        return True

    return compiled_part(is_array)


def _array_at(items: Items) -> Any:
    """Return an instruction that turns the address of numpy's array object into numba's array."""
    array_type = types.Array(from_dtype(items.dtype), items.dimensions, "C")

    def array_at(_typing_context: Any, _array: Any) -> Any:
        def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            def load(base: Any, offset: int) -> Any:
                address = builder.add(base, ir.Constant(_INT64, offset))
                return builder.load(builder.inttoptr(address, _INT64.as_pointer()))

            (base,) = arguments
            shape, strides = load(base, _SHAPE), load(base, _STRIDES)
            array = context.make_array(array_type)(context, builder)
            populate_array(  # type: ignore[no-untyped-call]
                array,
                data=builder.inttoptr(load(base, _DATA), array.data.type),
                shape=[load(shape, 8 * index) for index in range(items.dimensions)],
                strides=[load(strides, 8 * index) for index in range(items.dimensions)],
                itemsize=ir.Constant(_INT64, items.dtype.itemsize),
                meminfo=None,
            )
            return array._getvalue()  # noqa: SLF001  as numba's own extensions do

        return array_type(types.int64), generate

    return intrinsic(array_at)


# --- the instructions of `kernel_support`, by their names there


def load(number: str) -> Any:
    """Return an instruction that loads a number of this type."""
    numba_type = getattr(types, number)

    def load_number(_typing_context: Any, _address: Any) -> Any:
        def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            pointer = builder.inttoptr(arguments[0], ir.IntType(numba_type.bitwidth).as_pointer())
            # Numbers in records and sliced columns are not aligned.
            return builder.load(pointer, align=1)

        return numba_type(types.int64), generate

    return intrinsic(load_number)


def load_big_endian(number: str) -> Any:
    """Return an instruction that loads a big-endian number of this type, as 64 bits."""
    numba_type = getattr(types, number)
    bits = numba_type.bitwidth

    def load_number(_typing_context: Any, _address: Any) -> Any:
        def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            pointer = builder.inttoptr(arguments[0], ir.IntType(bits).as_pointer())
            loaded = builder.load(pointer, align=1)
            if bits > 8:  # noqa: PLR2004  a single byte has no order
                loaded = builder.bswap(loaded)
            extend = builder.sext if numba_type.signed else builder.zext
            return loaded if bits == _INT64.width else extend(loaded, _INT64)

        return types.int64(types.int64), generate

    return intrinsic(load_number)


def store(number: str) -> Any:
    """Return an instruction that stores a number of this type."""
    numba_type = getattr(types, number)

    def store_number(_typing_context: Any, _address: Any, _value: Any) -> Any:
        def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            pointer = builder.inttoptr(arguments[0], ir.IntType(numba_type.bitwidth).as_pointer())
            builder.store(arguments[1], pointer, align=1)

        return types.void(types.int64, numba_type), generate

    return intrinsic(store_number)


def store_as(number: str) -> Any:
    """Return an instruction that converts an integer of 64 bits to this type, and stores it."""
    numba_type = getattr(types, number)

    def store_number(_typing_context: Any, _address: Any, _value: Any) -> Any:
        def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            floating = context.get_value_type(numba_type)
            pointer = builder.inttoptr(arguments[0], floating.as_pointer())
            builder.store(builder.sitofp(arguments[1], floating), pointer, align=1)

        return types.void(types.int64, types.int64), generate

    return intrinsic(store_number)


def widen() -> Any:
    """Return an instruction that stores a floating-point number of 32 bits as one of 64."""

    def widen_float(_typing_context: Any, _target: Any, _source: Any) -> Any:
        def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            narrow, wide = map(context.get_value_type, (types.float32, types.float64))
            source = builder.inttoptr(arguments[1], narrow.as_pointer())
            target = builder.inttoptr(arguments[0], wide.as_pointer())
            number = builder.load(source, align=1)
            builder.store(builder.fpext(number, wide), target, align=1)

        return types.void(types.int64, types.int64), generate

    return intrinsic(widen_float)


def move(count: int) -> Any:
    """Return an instruction that copies this many bytes."""

    def move_bytes(_typing_context: Any, _target: Any, _source: Any) -> Any:
        def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            pointer = ir.IntType(8 * count).as_pointer()
            target, source = (builder.inttoptr(argument, pointer) for argument in arguments)
            builder.store(builder.load(source, align=1), target, align=1)

        return types.void(types.int64, types.int64), generate

    return intrinsic(move_bytes)


def copy() -> Any:
    """Return an instruction that copies a number of bytes."""

    def copy_bytes(_typing_context: Any, _target: Any, _source: Any, _count: Any) -> Any:
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

    return intrinsic(copy_bytes)


def count_bits() -> Any:
    """Return an instruction that counts the bits of a number without its leading zeros."""

    def significant_bits(_typing_context: Any, _value: Any) -> Any:
        def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            zeros = builder.ctlz(arguments[0], ir.Constant(ir.IntType(1), 0))
            return builder.sub(ir.Constant(_INT64, 64), zeros)

        return types.int64(types.int64), generate

    return intrinsic(significant_bits)


def multiply() -> Any:
    """Return an instruction for the upper 64 bits of the product of two unsigned numbers."""
    wide = ir.IntType(2 * _INT64.width)

    def multiply_high(_typing_context: Any, _one: Any, _other: Any) -> Any:
        def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            one, other = (builder.zext(argument, wide) for argument in arguments)
            upper = builder.lshr(builder.mul(one, other), ir.Constant(wide, _INT64.width))
            return builder.trunc(upper, _INT64)

        return types.int64(types.int64, types.int64), generate

    return intrinsic(multiply_high)


def wrap(operation: str) -> Any:
    """Return an instruction that adds, subtracts or multiplies and drops what overflows.

    numba tells LLVM that its own operations on signed numbers never overflow.
    """

    def wrapped(_typing_context: Any, _one: Any, _other: Any) -> Any:
        def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            return getattr(builder, operation)(*arguments)

        return types.int64(types.int64, types.int64), generate

    return intrinsic(wrapped)


def extend_crc32c(bits: int) -> Any:
    """Return x86-64's instruction for so many bits, as a function of checksum and data."""
    crc_bits = max(bits, 32)

    def extend(_typing_context: Any, _crc: Any, _data: Any) -> Any:
        def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            number, content = ir.IntType(crc_bits), ir.IntType(bits)
            function = cgutils.get_or_insert_function(  # type: ignore[no-untyped-call]
                builder.module,
                ir.FunctionType(number, (number, content)),
                f"llvm.x86.sse42.crc32.{crc_bits}.{bits}",
            )
            crc, data = arguments
            result = builder.call(
                function,
                (
                    crc if crc_bits == crc.type.width else builder.trunc(crc, number),
                    data if bits == data.type.width else builder.trunc(data, content),
                ),
            )
            return result if crc_bits == crc.type.width else builder.zext(result, crc.type)

        return types.int64(types.int64, types.int64), generate

    return intrinsic(extend)
