"""The import table of the package, and a checker of source text against it.

Four rules, all checked in the syntax tree, so that no module is imported:

- A layer imports only itself and the layers that `LAYERS` grants it: arrows point down.
- The same holds for rooms, the folders of a layer: each imports only what `ROOMS` grants it.
- A guarded library is imported only by the files that `GUARDED` names for it.
- Pure layers and rooms read no clock, neither by `time` nor by `datetime.now()` and the like.

Imports inside functions count like all others. Imports for types alone (`if TYPE_CHECKING:`) load
nothing: they may name guarded libraries, and point up within a layer.
"""

from __future__ import annotations

import ast
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

PACKAGE = "spark_kafka_sink"

_BOTTOM = frozenset({"errors", "model", "display"})
_PURE = ("config", "metrics", "record", "protocol", "security")
#: Rooms of other layers to which the same applies.
_PURE_ROOMS = {("consumer", room) for room in ("subscription", "group", "records")}
#: The names of Kafka's errors. Layers above `admin` see no other part of the protocol.
_ERROR_CODES = "protocol.error_codes"

#: What each layer may import besides itself: layers, and modules in them. All layers may import
#: `errors`, `model` and `display`.
LAYERS: dict[str, frozenset[str]] = {
    "errors": frozenset({"display"}),
    "display": frozenset(),
    "model": frozenset({"display"}),
    "version": frozenset(),
    **dict.fromkeys(_PURE, _BOTTOM),
    "metrics": _BOTTOM | {"config"},
    "record": _BOTTOM,
    # Payloads to columns of Arrow, and back.
    "formats": _BOTTOM | {"record", "config", "registry"},
    "network": _BOTTOM | {"config", "protocol", "security"},
    # HTTP over TLS is all that it shares with the connections to brokers.
    "registry": _BOTTOM | {"config", "security", "network.http_client", "network.tls_contexts"},
    "producer": _BOTTOM
    | {"network", "record", "protocol", "config", "metrics", "formats", "registry"},
    "consumer": _BOTTOM
    | {"network", "record", "protocol", "config", "metrics", "formats", "registry"},
    "admin": _BOTTOM | {"network", "protocol", "record", "config"},
    "exactly_once": _BOTTOM | {"admin", _ERROR_CODES},
    # The operators' commands.
    "groups": _BOTTOM | {"admin", "config", "version", _ERROR_CODES},
    "transactions": _BOTTOM | {"exactly_once", "admin", "config", "version", _ERROR_CODES},
    "spark": _BOTTOM
    | {
        "exactly_once",
        "admin",
        "producer",
        "consumer",
        "formats",
        "registry",
        "record",
        "config",
        "metrics",
        "version",
        _ERROR_CODES,
    },
    # Values and Spark's listener; reports arrive as plain data, from the session or from a file.
    # Interceptors name the types of records.
    "observability": _BOTTOM | {"spark", "version", "producer.records", "consumer.records"},
    # The command for container images.
    "warm_cache": _BOTTOM | {"formats", "record", "version"},
    # The syntax of server.properties is that of the files of clients.
    "devbroker": _BOTTOM | {"protocol", "record", "security", "version", "config.properties"},
    # The two entry points of the package only re-export public names.
    "testing": _BOTTOM | {"devbroker", "protocol", "record", "security"},
    "__init__": _BOTTOM
    | {
        "admin",
        "config",
        "consumer",
        "formats",
        "metrics",
        "network",
        "producer",
        "protocol.acl_codes",
        "record",
        "security",
        "spark",
        "version",
    },
}

#: The modules of a layer that are in none of its folders.
TOP = "(top)"

#: What the modules of each room may import from other rooms of their layer: only from rooms listed
#: above it, so arrows point down. A module with its own row is on a different level than its
#: neighbours.
ROOMS: dict[str, dict[str, tuple[str, ...]]] = {
    "protocol": {
        TOP: (),
        "messages": (TOP,),
        "registry": (TOP, "messages"),
        "group_offsets": (TOP, "messages"),
    },
    "record": {
        TOP: (),
        "kernel": (TOP,),
        "arrow": (TOP, "kernel"),
    },
    "formats": {
        "columnar": (),
        "avro": ("columnar",),
        "json": ("columnar",),
        TOP: ("columnar", "avro", "json"),
    },
    "admin": {
        "terminal": (),
        "values": (),
        "transaction_values": (),
        "cluster_values": (),
        "cluster_calls": (),
        "item_requests": ("cluster_calls",),
        "requests": (
            *("values", "transaction_values", "cluster_values"),
            *("cluster_calls", "item_requests"),
        ),
        TOP: (
            *("values", "transaction_values", "cluster_values"),
            *("cluster_calls", "item_requests", "requests"),
        ),
    },
    "network": {
        "exponential_backoff": (),
        "timeout_check": (),
        "http_client": (),
        "tls_contexts": (),
        "daemon_thread": ("timeout_check",),
        "authentication": (
            "exponential_backoff",
            "timeout_check",
            "http_client",
            "tls_contexts",
            "daemon_thread",
        ),
        "connection": ("timeout_check", "tls_contexts", "daemon_thread", "authentication"),
        TOP: ("exponential_backoff", "timeout_check", "authentication", "connection"),
    },
    "producer": {
        "batch": (),
        "records": ("batch",),
        "sending": ("batch",),
        TOP: ("batch", "records", "sending"),
    },
    "consumer": {
        "assignors": (),
        "records": (),
        "subscription": (),
        "offsets": ("subscription",),
        "group": ("assignors", "subscription", "offsets"),
        "fetch": ("subscription", "offsets"),
        TOP: ("assignors", "records", "subscription", "offsets", "group", "fetch"),
    },
    "exactly_once": {
        TOP: (),
        "operations": (TOP,),
        "transactions_report": (TOP, "operations"),
    },
    "spark": {
        TOP: (),
        "sink": (TOP,),
        "source": (TOP,),
        "data_source": (TOP, "sink", "source"),
    },
    "devbroker": {
        "base": (),
        # The metadata of a cluster that replicates, and the controller that changes them.
        "metadata": ("base",),
        "controller": ("base", "metadata"),
        "log": ("base", "metadata"),
        "replication": ("base", "metadata", "log"),
        # One broker of such a cluster, with all its parts.
        "lifecycle": ("base", "metadata", "controller", "replication"),
        "transactions": ("base", "log"),
        "groups": ("base", "log"),
        "cluster": ("base", "metadata", "log", "replication", "transactions", "groups"),
        "handlers": ("base", "log", "replication", "transactions", "groups", "cluster"),
        "broker": ("base", "cluster", "handlers"),
        # A cluster as a whole: one broker, or several that replicate.
        "brokers": (
            *("base", "metadata", "controller", "log", "replication", "lifecycle"),
            *("cluster", "handlers", "broker"),
        ),
        "net": ("base", "cluster", "handlers", "broker"),
        # The Schema Registry, whose connections and faults are like the broker's.
        "registry": ("base", "log", "net"),
        TOP: ("base", "log", "broker", "brokers", "net", "registry"),
    },
}

#: A module of more lines is probably about more than one thing. A kernel is compiled as a whole.
MOST_LINES = 1000
#: A module of fewer lines with one importer is a part of that importer.
FEWEST_LINES = 100
#: A subject of handlers and the messages of an API have a module of their own, and so has a part
#: of a kernel, which is compiled by itself.
_ONE_MODULE_EACH = frozenset(
    {"devbroker/handlers", "protocol/messages", "record/kernel", "formats/columnar"}
)
#: Public: users name their classes in partition.assignment.strategy, as they do other assignors.
STAND_ALONE = frozenset(
    {
        "consumer/assignors/round_robin_assignor.py",
        "consumer/assignors/sticky_assignor.py",
    }
)
_KERNELS = PurePosixPath("spark_kafka_sink/record/kernel")

_EVENT_LOOP = (
    "network/*.py",
    "network/*/*.py",
    "admin/*.py",
    "producer/producer_core.py",
    "producer/threaded_core.py",
    "producer/loop_core.py",
    "producer/aio_kafka_producer.py",
    "producer/sending/sender.py",
    # Not the other rooms of `consumer`, which are pure.
    "consumer/*.py",
    "consumer/fetch/*.py",
    # The cores of `group` are free of it.
    "consumer/group/*coordinator.py",
    "consumer/group/offset_commits.py",
    "consumer/offsets/*.py",
    "devbroker/net/acceptor.py",
    "devbroker/net/control.py",
    "devbroker/net/server.py",
    "devbroker/registry/registry_server.py",
)

#: Library -> the files that may import it, as patterns relative to the package.
GUARDED: dict[str, tuple[str, ...]] = {
    "asyncio": _EVENT_LOOP,
    "socket": (
        "network/connection/*.py",
        "devbroker/net/acceptor.py",
        "devbroker/net/control.py",
        "devbroker/net/server.py",
        "spark/worker.py",
    ),
    "ssl": (
        "network/http_client.py",
        "network/connection/*.py",
        "security/tls.py",
    ),
    "pyspark": (
        "spark/*.py",
        "spark/sink/*.py",
        "spark/source/*.py",
        "observability/listener.py",
    ),
    "pyarrow": (
        "devbroker/topic_records.py",
        "record/arrow/*.py",
        "consumer/*.py",
        "formats/*.py",
        "formats/*/*.py",
        "registry/framing.py",
        "spark/sink/*.py",
        "spark/source/*.py",
    ),
    "numba": ("record/kernel/kernel_compiler.py",),
    "llvmlite": ("record/kernel/kernel_*.py",),
    "time": (
        "network/network_client.py",
        "producer/producer_core.py",
        "consumer/consumer_core.py",
        "admin/blocking_client.py",
        "admin/terminal.py",
        "devbroker/net/server.py",
        "registry/*.py",
        "spark/idle_cache.py",
        "spark/sink/*.py",
        "spark/source/*.py",
        "groups.py",
        "transactions.py",
        "warm_cache.py",
    ),
}

_CLOCK_METHODS = frozenset({"now", "utcnow", "today"})


class Violation(NamedTuple):
    """One import, or one call that reads the clock, that the table does not allow."""

    path: str
    line: int
    message: str

    def __str__(self) -> str:
        """Return the place and the message, in the format of compilers."""
        return f"{self.path}:{self.line}: {self.message}"


def check_source(path: PurePosixPath, source: str) -> list[Violation]:
    """Check the text of the module at `path`, which is relative to the package's directory."""
    layer = path.parts[0] if len(path.parts) > 1 else path.stem
    if layer not in LAYERS:
        return [Violation(str(path), 1, f"layer {layer!r} is not in the import table")]
    folder = "/".join(path.parts[1:-1])
    if folder and folder not in ROOMS.get(layer, {}):
        return [Violation(str(path), 1, f"room {folder!r} is not in the import table")]
    violations = []
    is_pure = layer in _PURE or (layer, folder) in _PURE_ROOMS
    tree = ast.parse(source)
    type_checking = {
        id(node)
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and _is_type_checking(block.test)
        for statement in block.body
        for node in ast.walk(statement)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            for_types = id(node) in type_checking
            messages = {
                _check_import(path, layer, module, for_types=for_types)
                for module in _imported_modules(node, path)
            }
            violations += [
                Violation(str(path), node.lineno, message) for message in messages if message
            ]
        elif is_pure and _reads_clock(node):
            violations.append(Violation(str(path), node.lineno, "pure code reads the clock"))
    return violations


def long_modules(modules: Mapping[PurePosixPath, str]) -> list[str]:
    """Return the modules whose texts have too many lines."""
    return sorted(
        str(path)
        for path, text in modules.items()
        if len(text.splitlines()) > MOST_LINES and path.parent != _KERNELS
    )


def parts_of_one_module(modules: Mapping[PurePosixPath, str]) -> list[str]:
    """Return the short modules that only one module, which is in their folder, imports.

    Such a module is a part of the other. Imports inside functions do not count: they load late what
    is not always needed. `STAND_ALONE` are exceptions.
    """
    imports: dict[str, set[tuple[PurePosixPath, bool]]] = {}
    names = {_name_of(path): path for path in modules}
    for path, text in modules.items():
        tree = ast.parse(text)
        at_top = {id(node) for node in tree.body}
        for node in ast.walk(tree):
            if isinstance(node, ast.Import | ast.ImportFrom):
                for name in _imported_modules(node, path):
                    module = name if name in names else name.rpartition(".")[0]
                    imports.setdefault(module, set()).add((path, id(node) in at_top))
    return sorted(
        str(path)
        for name, path in names.items()
        if len(modules[path].splitlines()) < FEWEST_LINES
        and str(path) not in STAND_ALONE
        and str(path.parent) not in _ONE_MODULE_EACH
        and _is_part(path, imports.get(name, set()))
    )


def _name_of(path: PurePosixPath) -> str:
    return ".".join((PACKAGE, *path.with_suffix("").parts))


def _is_part(path: PurePosixPath, imports: set[tuple[PurePosixPath, bool]]) -> bool:
    return len({importer for importer, _ in imports}) == 1 and all(
        importer.parent == path.parent and is_at_top for importer, is_at_top in imports
    )


def _check_import(path: PurePosixPath, layer: str, module: str, *, for_types: bool) -> str | None:
    root, _, rest = module.partition(".")
    if root == PACKAGE:
        target, *inside = rest.split(".") if rest else ["__init__"]
        if target == layer:
            room, below = _room(layer, path.with_suffix("").parts[1:]), _room(layer, inside)
            if for_types or room == below or below in ROOMS[layer][room]:
                return None
            return f"room {room!r} of {layer!r} may not import {below!r}"
        if target in LAYERS[layer] or ".".join((target, *inside[:1])) in LAYERS[layer]:
            return None
        return f"layer {layer!r} may not import {target!r}"
    allowed = GUARDED.get(root)
    if allowed is None or for_types or any(path.match(pattern) for pattern in allowed):
        return None
    return f"{root!r} may be imported only in {', '.join(allowed)}"


def _imported_modules(node: ast.Import | ast.ImportFrom, path: PurePosixPath) -> list[str]:
    """Return absolute names; for `from package import name`, including the imported name."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    base = node.module or ""
    if node.level:
        parents = (PACKAGE, *path.parts)[: -node.level]
        base = ".".join((*parents, base)) if base else ".".join(parents)
    if base.partition(".")[0] == PACKAGE:
        return [f"{base}.{alias.name}" for alias in node.names]
    return [base]


def _room(layer: str, path: Sequence[str]) -> str:
    """Return the room that contains a path, which is relative to the layer."""
    rooms = ROOMS.get(layer, {})
    for length in range(len(path), 0, -1):
        if (name := "/".join(path[:length])) in rooms:
            return name
    return TOP


def _is_type_checking(test: ast.expr) -> bool:
    name = test.attr if isinstance(test, ast.Attribute) else getattr(test, "id", None)
    return name == "TYPE_CHECKING"


def _reads_clock(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in _CLOCK_METHODS
        and isinstance(node.func.value, ast.Name | ast.Attribute)
        and (getattr(node.func.value, "id", None) or getattr(node.func.value, "attr", None))
        in {"datetime", "date"}
    )
