"""Every public name has a docstring: parameters, units, errors, and an example that runs."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
import time
from enum import Enum
from types import FunctionType, SimpleNamespace
from typing import get_origin

import pyarrow as pa
import pytest
from pyspark.sql.types import StringType, StructField, StructType

import spark_kafka_sink
import spark_kafka_sink.observability
import spark_kafka_sink.testing
from spark_kafka_sink import KafkaProducer, KafkaSink, errors
from spark_kafka_sink.config.client_config import KAFKA_PREFIX
from spark_kafka_sink.config.producer_config import PRODUCER_CONFIG_DEF
from spark_kafka_sink.config.sink_options import SINK_OPTIONS_DEF
from spark_kafka_sink.config.source_table import SOURCE_OPTIONS_DEF
from tests.support.documentation import ADDRESS, faults_of_example, source_of
from tests.support.platforms.tried_frame import TriedFrame

DOORS = (spark_kafka_sink, spark_kafka_sink.testing, spark_kafka_sink.observability)
#: The topics of the broker that the examples write to.
TOPICS = {"orders": 1, "payments": 1}
#: The DataFrame of the examples.
DF = TriedFrame(StructType([StructField("value", StringType())]), [pa.table({"value": ["a book"]})])
#: Names whose example needs Spark; `tests/spark/test_docs.py` runs it.
OF_SPARK = {"spark_kafka_sink.KafkaSink", "spark_kafka_sink.KafkaSource"}
#: The session of the examples, which do not use it.
SPARK = SimpleNamespace()
#: Classes that only the package instantiates, and methods that only the package calls.
NOT_FOR_USERS = {
    *("AdminConfig", "KafkaConsumerConfig", "ProducerConfig"),
    *("FaultHook", "FutureTableMetadata", "KafkaMetric"),
    *("KafkaProducer.append_good", "KafkaProducer.append_unnumbered"),
    *("KafkaProducer.set_refused_aside", "KafkaProducer.take_refused"),
    *("FaultHook.ask", "FutureRecordMetadata.fail"),
    *("RegistryFaultHook", "RegistryFaultHook.ask", "RegistryFaultHook.matches"),
    "SchemaRegistry",
}
#: The classes of `errors`, which users catch.
ERRORS = {name for name, value in vars(errors).items() if inspect.isclass(value)}
#: Names of numbers that mean nothing without a unit, unless the name itself ends with one.
OF_TIME_OR_SIZE = re.compile(
    r"(?:^|_)(?:timeout|timestamp|time|delay|duration|now|at|size|memory|latency)$"
)
UNIT = re.compile(r"\b(?:seconds|milliseconds|ms|bytes|number)\b", re.IGNORECASE)
#: A comment that documents the field below it.
FIELD_COMMENT = re.compile(r"#:.*\n(?:\s*#:?.*\n)*\s*(\w+):")


def is_documented_by_itself(value: object) -> bool:
    """Return whether a value can have a docstring, which type aliases and strings cannot."""
    return isinstance(value, type) or inspect.isfunction(value)


PUBLIC = {
    f"{door.__name__}.{name}": value
    for door in DOORS
    for name in door.__all__
    if is_documented_by_itself(value := getattr(door, name)) and get_origin(value) is None
}


#: Any number of parameters, such as `**settings`.
VARIABLE = {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}


def parameters_of(function: object) -> list[str]:
    """Return the parameters that callers pass; none for an object without a signature."""
    try:
        found = inspect.signature(function).parameters
    except ValueError:
        return []
    return [
        name
        for name, parameter in found.items()
        if name not in {"self", "cls"} and parameter.kind not in VARIABLE
    ]


def public_methods(cls: type) -> dict[str, object]:
    """Return the public methods that a class defines or inherits from a class of this package."""
    return {
        name: getattr(cls, name)
        for owner in reversed(cls.__mro__)
        if owner.__module__.startswith("spark_kafka_sink")
        for name, value in vars(owner).items()
        if not name.startswith("_") and isinstance(value, (*FUNCTIONS,))
    }


FUNCTIONS = (type(lambda: None), classmethod, staticmethod)


def named_in(text: str, parameters: list[str]) -> set[str]:
    """Return the parameters that a docstring names, with or without quotes."""
    return {name for name in parameters if re.search(rf"\b{re.escape(name)}\b", text)}


def field_comments(cls: type) -> dict[str, str]:
    """Return the `#: ...` comments of a class by the field that each of them documents."""
    return {found[1]: found[0] for found in FIELD_COMMENT.finditer(source_of(cls))}


def commented_fields(cls: type) -> set[str]:
    """Return the fields of a class that have a `#: ...` comment."""
    return set(FIELD_COMMENT.findall(source_of(cls)))


def undocumented(value: type | FunctionType) -> list[str]:
    """Return the parameters that no docstring names, of a function or a class and its methods."""
    if isinstance(value, FunctionType):
        parameters = parameters_of(value)
        return sorted(set(parameters) - named_in(inspect.getdoc(value) or "", parameters))
    return undocumented_in_class(value)


def undocumented_in_class(cls: type) -> list[str]:
    """Return the parameters of a class and of its methods that no docstring names."""
    about_class = f"{cls.__doc__} {cls.__init__.__doc__ or ''}"
    missing = []
    can_be_made = not issubclass(cls, Enum) and not getattr(cls, "_is_protocol", False)
    if can_be_made and cls.__name__ not in NOT_FOR_USERS:
        parameters = parameters_of(cls)
        known = named_in(about_class, parameters) | commented_fields(cls)
        missing += [f"{cls.__name__}({name})" for name in parameters if name not in known]
    for method_name, method in public_methods(cls).items():
        if f"{cls.__name__}.{method_name}" in NOT_FOR_USERS:
            continue
        parameters = parameters_of(method)
        known = named_in(f"{about_class} {inspect.getdoc(method)}", parameters)
        missing += [f"{method_name}({name})" for name in parameters if name not in known]
    return missing


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_name_says_what_its_parameters_mean(name):
    """Every parameter of a public class and of its methods is named in a docstring."""
    value = PUBLIC[name]

    assert value.__doc__
    assert [] == undocumented(value)


def without_unit(cls: type) -> list[str]:
    """Return the numbers of time or size that a class or its methods take without naming a unit."""
    about_class = f"{cls.__doc__} {cls.__init__.__doc__ or ''}"
    callables = {cls.__name__: (cls, about_class, field_comments(cls))} | {
        f"{cls.__name__}.{name}": (method, f"{about_class} {inspect.getdoc(method) or ''}", {})
        for name, method in public_methods(cls).items()
    }
    return [
        f"{place}({name})"
        for place, (function, text, comments) in callables.items()
        if place not in NOT_FOR_USERS
        for name in numbers_of(function)
        if OF_TIME_OR_SIZE.search(name)
        and not UNIT.search(f"{sentence_about(name, text)} {comments.get(name, '')}")
    ]


def numbers_of(function: object) -> list[str]:
    """Return the parameters that are annotated as numbers."""
    return [
        name
        for name in parameters_of(function)
        if re.search(r"\b(?:int|float)\b", str(inspect.signature(function).parameters[name]))
    ]


def sentence_about(name: str, text: str) -> str:
    """Return the sentences of a docstring that name a parameter."""
    sentences = re.split(r"(?<=[.;:])\s+", text)
    return " ".join(each for each in sentences if re.search(rf"\b{name}\b", each))


@pytest.mark.parametrize("name", PUBLIC)
def test_a_number_of_time_or_size_has_its_unit(name):
    """A timeout, time or size says its unit, in its name or in the sentence that explains it."""
    value = PUBLIC[name]

    assert [] == (without_unit(value) if isinstance(value, type) else [])


def raised_by(function: object, cls: type, seen: set[object]) -> set[str]:
    """Return the errors that a function raises itself, or by functions that it calls by name.

    It follows calls of methods of `cls` and of functions of the function's own module.
    """
    function = inspect.unwrap(getattr(function, "__func__", function))
    if function in seen or not inspect.isfunction(function):
        return set()
    seen.add(function)
    try:
        source = textwrap.dedent(inspect.getsource(function))
    except OSError:  # a method that the dataclass decorator has generated
        return set()
    found = set()
    for node in own_nodes(ast.parse(source).body[0]):
        match node:
            case ast.Raise(exc=ast.Call(func=ast.Name(id=error))) if error in ERRORS:
                found.add(error)
            case ast.Call(func=ast.Attribute(value=ast.Name(id="self" | "cls"), attr=called)):
                found |= raised_by(inspect.getattr_static(cls, called, None), cls, seen)
            case ast.Call(func=ast.Name(id=called)):
                found |= raised_by(function.__globals__.get(called), cls, seen)
    return found


def own_nodes(function: ast.AST) -> list[ast.AST]:
    """Return the nodes of a function without those of the functions that it defines."""
    nodes = []
    for child in ast.iter_child_nodes(function):
        if not isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            nodes += [child, *own_nodes(child)]
    return nodes


def unsaid_errors(cls: type) -> list[str]:
    """Return the errors that a class or its methods raise and that no docstring names."""
    about_class = f"{cls.__doc__} {cls.__init__.__doc__ or ''}"
    makers = [vars(cls).get(name) for name in ("__init__", "__post_init__", "__new__")]
    callables = {
        f"{cls.__name__}.{name}": (method, inspect.getdoc(method) or "")
        for name, method in public_methods(cls).items()
    } | {f"{cls.__name__}()": (maker, "") for maker in makers if maker is not None}
    return [
        f"{place}: {error}"
        for place, (function, text) in callables.items()
        if place not in NOT_FOR_USERS
        for error in sorted(raised_by(function, cls, set()))
        if not re.search(rf"\b[Rr]aises?\b.*\b{error}\b", f"{about_class} {text}", re.DOTALL)
    ]


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_name_says_which_errors_it_raises(name):
    """The docstring of a call, or of its class, names each of our errors that the call raises."""
    value = PUBLIC[name]

    assert [] == (unsaid_errors(value) if isinstance(value, type) else [])


@pytest.fixture(autouse=True)
def _faults_act():
    """Replace the check of all tests: a short example may inject a fault that does not act."""


@pytest.mark.parametrize("name", sorted(PUBLIC.keys() - OF_SPARK))
def test_a_public_name_has_an_example_that_runs(name, start_devbroker, tmp_path, monkeypatch):
    """The docstring of a public name has an example, which prints the output that it shows."""
    # As in the processes of Spark's driver.
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path))
    value = PUBLIC[name]
    address = ADDRESS
    if ADDRESS in inspect.getdoc(value):
        address = start_devbroker(topics=TOPICS).bootstrap_servers
    names = {name: getattr(door, name) for door in DOORS for name in door.__all__}

    assert [] == faults_of_example(value, names | {"time": time, "df": DF, "spark": SPARK}, address)


#: A setting in a list, and the default that follows it.
SETTING = re.compile(r"`([\w.]+)`(?: \(`(\w+)`\))?")


def listed_settings(cls: type) -> dict[str, str]:
    """Return the settings that the docstring of a class lists, and the defaults that it names."""
    items = inspect.getdoc(cls).partition("The main ")[2].split("\n- ")[1:]
    return {name: value for item in items for name, value in SETTING.findall(item.split(": ")[0])}


@pytest.mark.parametrize("cls", [KafkaProducer, KafkaSink])
def test_the_settings_in_a_docstring_have_the_defaults_that_it_names(cls):
    """The help of the producer and the data source lists settings that exist, with defaults."""
    tables = [(PRODUCER_CONFIG_DEF, KAFKA_PREFIX if cls is KafkaSink else "")]
    if cls is KafkaSink:
        tables += [(SINK_OPTIONS_DEF, ""), (SOURCE_OPTIONS_DEF, "")]
    known = {f"{prefix}{key.name}": key.default_text() for table, prefix in tables for key in table}

    listed = listed_settings(cls)

    assert {"checkpointLocation"} >= listed.keys() - known.keys()
    assert 8 <= len(listed)
    named = {name: default for name, default in listed.items() if default}
    assert {name: known[name] for name in named} == named
