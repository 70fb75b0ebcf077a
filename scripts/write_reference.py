"""Write the pages of the documentation that follow from the code.

    python scripts/write_reference.py

writes the pages of `docs/reference` that list options, settings, errors and metrics, and the map of
the package in `docs/internals/map.md`, from the tables that the code itself uses. A test
compares the result with the pages in the repository.
"""

from __future__ import annotations

import inspect
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from spark_kafka_sink import errors  # noqa: E402
from spark_kafka_sink.config.admin_config import (  # noqa: E402
    ADMIN_CONFIG_DEF,
    REFUSED_ADMIN,
)
from spark_kafka_sink.config.client_config import KAFKA_PREFIX  # noqa: E402
from spark_kafka_sink.config.config_def import REQUIRED  # noqa: E402
from spark_kafka_sink.config.consumer_config import (  # noqa: E402  # noqa: E402
    CONSUMER_CONFIG_DEF,
    CONSUMER_ONLY,
    KAFKA_CONSUMER_CONFIG_DEF,
    PRODUCER_ONLY,
    REFUSED_CONSUMER,
    REFUSED_KAFKA_CONSUMER,
    WITHOUT_EFFECT,
)
from spark_kafka_sink.config.format_options import (  # noqa: E402
    FORMAT_OPTIONS,
    READ_FORMAT_OPTIONS,
)
from spark_kafka_sink.config.producer_config import (  # noqa: E402
    PRODUCER_CONFIG_DEF,
    REFUSED,
)
from spark_kafka_sink.config.registry_settings import (  # noqa: E402
    REFUSED_REGISTRY,
    REGISTRY_CONFIG_DEF,
    REGISTRY_PREFIX,
    REGISTRY_REFERENCE_SETTINGS,
)
from spark_kafka_sink.config.security_settings import (  # noqa: E402
    REFERENCE_SETTINGS,
    REFUSED_SECURITY,
    SECURITY_CONFIG_DEF,
)
from spark_kafka_sink.config.sink_options import (  # noqa: E402
    REFUSED_IN_SPARK,
    SINK_OPTIONS_DEF,
    SPARK_OPTIONS,
)
from spark_kafka_sink.config.source_table import SOURCE_OPTIONS_DEF  # noqa: E402
from spark_kafka_sink.consumer.consumer_metrics import (  # noqa: E402
    CONSUMER_GROUP,
    COORDINATOR_GROUP,
    FETCH_GROUP,
    ConsumerMetrics,
)
from spark_kafka_sink.metrics.kafka_metric import MetricConfig  # noqa: E402
from spark_kafka_sink.metrics.metrics import Metrics  # noqa: E402
from spark_kafka_sink.metrics.snapshot import MetricsSnapshot, Summary  # noqa: E402
from spark_kafka_sink.model import TopicPartition  # noqa: E402
from spark_kafka_sink.producer.batch.error_rules import (  # noqa: E402
    ABORT_RULES,
    TXN_RULES,
    ProduceAction,
    TxnAction,
    produce_action,
    txn_action,
)
from spark_kafka_sink.producer.sender_metrics import (  # noqa: E402
    PRODUCER_GROUP,
    TOPIC_GROUP,
    SenderMetrics,
)
from spark_kafka_sink.protocol.error_codes import ErrorCode  # noqa: E402
from tests.support.import_rules import LAYERS, PACKAGE, ROOMS, TOP  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from spark_kafka_sink.config.config_def import ConfigDef, ConfigKey, RefusedSetting

DOCS = ROOT / "docs"
_NOTE = (
    "<!-- Written by scripts/write_reference.py from the code: change the code, not this page. -->"
)

#: What the producer does with a batch; a code's own meaning is in the table of codes.
_PRODUCE_ACTIONS = {
    ProduceAction.COMPLETE: "acknowledged",
    ProduceAction.RETRY: "retried",
    ProduceAction.REFRESH_METADATA: "retried after a metadata refresh",
    ProduceAction.SPLIT: "split and retried; a batch of one record fails",
    ProduceAction.BUMP_EPOCH: "retried in its turn, or fails; see the producer guide",
    ProduceAction.FAIL_BATCH: "fails",
    ProduceAction.FATAL: "fails, and the producer ends",
}
_TXN_ACTIONS = {
    TxnAction.DONE: "done",
    TxnAction.NOT_ATTEMPTED: "not attempted",
    TxnAction.RETRY: "retry",
    TxnAction.RETRY_SOON: "retry soon",
    TxnAction.FIND_COORDINATOR: "find coordinator",
    TxnAction.ABORTABLE: "abort",
    TxnAction.ABORTABLE_WITH_BUMP: "abort, new epoch",
    TxnAction.UNAUTHORIZED: "unauthorized",
    TxnAction.REINITIALIZE: "reinitialize",
    TxnAction.FENCED: "fenced",
    TxnAction.FATAL: "fatal",
}


def pages() -> dict[Path, str]:
    """Return the text of each page, by its path."""
    reference = DOCS / "reference"
    package_map = DOCS / "internals" / "map.md"
    return {
        reference / "options.md": options_page(),
        reference / "source-options.md": source_options_page(),
        reference / "producer-settings.md": settings_page(),
        reference / "consumer-settings.md": consumer_settings_page(),
        reference / "group-consumer-settings.md": group_consumer_settings_page(),
        reference / "admin-settings.md": admin_settings_page(),
        reference / "registry-settings.md": registry_settings_page(),
        reference / "errors.md": errors_page(),
        reference / "metrics.md": metrics_page(),
        package_map: with_part(package_map.read_text(), "layers", layers_map()),
    }


def with_part(page: str, name: str, part: str) -> str:
    """Replace the part of a page between its comments `<!-- name -->` and `<!-- end -->`."""
    return re.sub(
        rf"(?<=<!-- {name} -->\n).*?(?=<!-- end -->)",
        lambda _: f"\n{part}\n",
        page,
        flags=re.DOTALL,
    )


# --- options and settings


def options_page() -> str:
    """Return the page of the options of a Spark write."""
    typed = {*FORMAT_OPTIONS, *READ_FORMAT_OPTIONS}
    return _page(
        "Options",
        'The options of `df.write.format("pykafka")` and `stream.writeStream.format("pykafka")`. '
        "Names are not case-sensitive. An unknown option is an error that suggests the nearest "
        "known one.",
        "## The sink's own",
        "`python -m spark_kafka_sink.config.options_table sink` prints them as a table; `kafka`, "
        "`source` and `consumer` select the tables of the other pages.",
        *_settings(SINK_OPTIONS_DEF),
        "## Settings of the producer",
        "Every [setting of the producer](producer-settings.md) is an option too, with "
        f"`{KAFKA_PREFIX}` in front of its name. A Spark write refuses these, because they have no "
        "meaning in it:",
        _refused(REFUSED_IN_SPARK, prefix=KAFKA_PREFIX),
        "## Options of Spark and of the source",
        "Spark itself handles these options of a stream: "
        + _names(SPARK_OPTIONS)
        + ". (`checkpointLocation` is also read for `sourceConsumerGroup`.)",
        "Jobs often share one set of options between source and sink. So the "
        "[options of the source](source-options.md) and the settings of Kafka's consumer are "
        "ignored, with a warning:",
        f"- {_names(name for name in SOURCE_OPTIONS_DEF.names if name not in typed)}",
        f"- {_names(KAFKA_PREFIX + name for name in CONSUMER_ONLY)}",
        f"{_names(READ_FORMAT_OPTIONS)} are refused: they say how a read treats payloads.",
    )


def settings_page() -> str:
    """Return the page of the settings of the producer."""
    return _page(
        "Producer settings",
        "The settings of `KafkaProducer`, under the names that Kafka's own producer has for them. "
        f"In a Spark write, put `{KAFKA_PREFIX}` in front of the name. A setting of Kafka's "
        "producer that is not supported is an error that gives the reason, and an unknown one is "
        "an error that suggests the nearest known name: no setting is silently ignored.",
        *_general_settings(PRODUCER_CONFIG_DEF),
        "## TLS and SASL",
        "The [guide](../guides/security.md) shows them at work. Settings of the type `password`, "
        "and "
        + _names(sorted(REFERENCE_SETTINGS - _passwords(SECURITY_CONFIG_DEF)))
        + ", may be [references](../guides/security.md#secrets-by-reference) such as "
        "`${env:NAME}`.",
        *_settings(SECURITY_CONFIG_DEF),
        *_not_supported(REFUSED),
    )


def source_options_page() -> str:
    """Return the page of the options of a Spark read."""
    return _page(
        "Options of a read",
        'The options of `spark.read.format("pykafka")` and `spark.readStream.format("pykafka")`: '
        "those of Spark's own Kafka source, with its meaning, and `commitGroup`. Names are not "
        "case-sensitive. An unknown option is an error that suggests the nearest known one, and so "
        "is an option [of the sink](options.md).",
        "## The source's own",
        *_settings(SOURCE_OPTIONS_DEF),
        "## Settings of the consumer",
        "Every [setting of the consumer](consumer-settings.md) is an option too, with "
        f"`{KAFKA_PREFIX}` in front of its name.",
        "## Options without effect",
        "These settings of Kafka's consumer are accepted, as in Spark's own source, and have no "
        "effect, since a read joins no consumer group and has no polls. A warning says so:",
        f"- {_names(KAFKA_PREFIX + name for name in sorted(WITHOUT_EFFECT))}",
        "Jobs often share one set of options between source and sink. So the settings that only "
        "the producer has are ignored, with a warning:",
        f"- {_names(KAFKA_PREFIX + name for name in PRODUCER_ONLY)}",
        "Spark itself handles these options of a stream: " + _names(SPARK_OPTIONS) + ".",
    )


def consumer_settings_page() -> str:
    """Return the page of the settings of the consumer."""
    return _page(
        "Consumer settings",
        "The settings of reads, under the names that Kafka's own consumer has for them. In a Spark "
        f"read, put `{KAFKA_PREFIX}` in front of the name. A setting of Kafka's consumer that is "
        "not supported is an error that gives the reason, and an unknown one is an error that "
        "suggests the nearest known name. `KafkaConsumer`, which joins consumer groups, has "
        "[settings of its own](group-consumer-settings.md).",
        *_general_settings(CONSUMER_CONFIG_DEF),
        "## TLS and SASL",
        "They are [those of the producer](producer-settings.md#tls-and-sasl), and so are the "
        "[unsupported ones](producer-settings.md#not-supported).",
        *_not_supported(
            {name: row for name, row in REFUSED_CONSUMER.items() if name not in REFUSED_SECURITY}
        ),
        "A Spark read [ignores](source-options.md#options-without-effect) those of consumer groups "
        "and polls, with a warning.",
    )


def group_consumer_settings_page() -> str:
    """Return the page of the settings of the group consumer."""
    return _page(
        "Group consumer settings",
        "The settings of `KafkaConsumer`, under the names that Kafka's own consumer has for them. "
        "A setting of Kafka's consumer that is not supported is an error that gives the reason, "
        "and an unknown one is an error that suggests the nearest known name. Reads, which join no "
        "group, have [settings of their own](consumer-settings.md).",
        *_general_settings(KAFKA_CONSUMER_CONFIG_DEF),
        "## TLS and SASL",
        "They are [those of the producer](producer-settings.md#tls-and-sasl), and so are the "
        "[unsupported ones](producer-settings.md#not-supported).",
        *_not_supported(
            {
                name: row
                for name, row in REFUSED_KAFKA_CONSUMER.items()
                if name not in REFUSED_SECURITY
            }
        ),
    )


def admin_settings_page() -> str:
    """Return the page of the settings of the admin client."""
    return _page(
        "Admin client settings",
        "The settings of `AdminClient`, under the names that Kafka's own admin client has for "
        "them. A setting of Kafka's admin client that is not supported is an error that gives the "
        "reason, and an unknown one is an error that suggests the nearest known name.",
        *_general_settings(ADMIN_CONFIG_DEF),
        "## TLS and SASL",
        "They are [those of the producer](producer-settings.md#tls-and-sasl), and so are the "
        "[unsupported ones](producer-settings.md#not-supported).",
        *_not_supported(
            {name: row for name, row in REFUSED_ADMIN.items() if name not in REFUSED_SECURITY}
        ),
    )


def registry_settings_page() -> str:
    """Return the page of the settings of a Schema Registry."""
    return _page(
        "Schema Registry settings",
        "The settings of the client of a Schema Registry, under the names that Confluent's clients "
        f"have for them. In the options of Spark, put `{REGISTRY_PREFIX}` in front of the name. A "
        "setting that is not supported is an error that gives the reason, and an unknown one is an "
        "error that suggests the nearest known name.",
        "Settings of the type `password`, and "
        + _names(sorted(REGISTRY_REFERENCE_SETTINGS - _passwords(REGISTRY_CONFIG_DEF)))
        + ", may be [references](../guides/security.md#secrets-by-reference) such as "
        "`${env:NAME}`.",
        *_general_settings(REGISTRY_CONFIG_DEF),
        "## TLS",
        "They are [those of the producer](producer-settings.md#tls-and-sasl): all that begin with "
        "`ssl.`.",
        *_not_supported(
            {name: row for name, row in REFUSED_REGISTRY.items() if name not in REFUSED_SECURITY}
        ),
    )


def _general_settings(table: ConfigDef) -> list[str]:
    return ["## General", *_settings(key for key in table if key.name not in SECURITY_CONFIG_DEF)]


def _not_supported(refused: Mapping[str, RefusedSetting]) -> list[str]:
    explanation = (
        "Values that request what happens anyway are accepted, in any case; any other value is an "
        "error with this reason."
    )
    return ["## Not supported", explanation, _refused(refused)]


def _settings(keys: Iterable[ConfigKey]) -> list[str]:
    """Return the heading and the text of each setting, so that one can be linked and read alone."""
    return [part for key in keys for part in (f"### {key.name}", key.doc, _facts(key))]


def _facts(key: ConfigKey) -> str:
    default = key.default_text()
    facts = {
        "Type": key.type.value,
        "Default": "none, it is required"
        if key.default is REQUIRED
        else default and f"`{default}`",
        "Valid values": str(key.validator or ""),
        "Importance": key.importance.value,
    }
    return " ".join(f"**{name}:** {fact}." for name, fact in facts.items() if fact)


def _passwords(table: ConfigDef) -> set[str]:
    return {key.name for key in table if key.type.value == "password"}


def _refused(settings: Mapping[str, RefusedSetting], prefix: str = "") -> str:
    return _table(
        ("setting", "accepted values", "why it is not supported"),
        (
            (
                f"`{prefix}{name}`",
                ", ".join(f"`{value}`" if value else "(empty)" for value in setting.accepted),
                setting.said(),
            )
            for name, setting in settings.items()
        ),
    )


# --- errors


def errors_page() -> str:
    """Return the page of the errors of the package and of Kafka's error codes."""
    # In the order of the source.
    classes = dict.fromkeys(value for value in vars(errors).values() if inspect.isclass(value))
    del classes[errors.KafkaError]
    return _page(
        "Errors",
        "All errors are in `spark_kafka_sink` and derive from `KafkaError`. Its attribute "
        "`retriable` says whether the same request may succeed when it is retried. Messages say "
        "what happened, where, and what to do; they never contain a secret. The [guide of the "
        "producer](../guides/producer.md#errors) says which call raises which error, and the "
        "[API](api.md#errors) has an example of each.",
        "## Errors of the package",
        *(
            part
            for cls in classes
            for part in (f"### {cls.__name__}", _prose(cls), _error_facts(cls))
        ),
        "## Kafka's error codes",
        "A code that a broker answers with becomes a `BrokerError`, whose `code` and `name` are "
        "these. A newer broker may send a code that is not in the table: it keeps its number and "
        "is not retriable. The last column says what happens to a batch that a broker answers with "
        "the code.",
        _table(
            ("code", "name", "retriable", "meaning", "a batch"),
            (
                (
                    str(code.value),
                    f"`{code.name}`",
                    "yes" if code.retriable else "no",
                    code.meaning,
                    _PRODUCE_ACTIONS[produce_action(code)],
                )
                for code in sorted(ErrorCode)
            ),
        ),
        "## Codes of transactional requests",
        _transactional_codes(),
    )


def _error_facts(cls: type[errors.KafkaError]) -> str:
    bases = ", ".join(f"`{base.__name__}`" for base in cls.__bases__)
    retriable = "yes" if cls.retriable else "no"
    if issubclass(cls, errors.BrokerError):
        retriable = "as its code"
    return f"**Derives from:** {bases}. **Retriable:** {retriable}."


def _transactional_codes() -> str:
    columns: list[tuple[str, Any, bool]] = [(api.name, api, False) for api in TXN_RULES]
    end_txn = columns.pop()
    columns += [("END_TXN (commit)", end_txn[1], False), ("END_TXN (abort)", end_txn[1], True)]
    listed = sorted({*ABORT_RULES, *(code for rules in TXN_RULES.values() for code in rules)})
    rows = (
        (
            f"`{ErrorCode(code).name}`",
            *(_TXN_ACTIONS[txn_action(api, code, is_abort=abort)] for _, api, abort in columns),
        )
        for code in listed
    )
    return (
        "What the producer does when the answer to a transactional request has one of these codes. "
        "*Abort* means that the transaction can only be aborted, *new epoch* that the next one "
        "needs a new epoch, *unauthorized* that pending requests fail but access may be granted "
        "later, *reinitialize* that the coordinator decides whether the producer may continue. "
        "*Fenced* and *fatal* end the producer. Of all other codes, the retriable ones are "
        "retried; the rest are fatal, except in ADD_PARTITIONS_TO_TXN, after which the "
        "transaction can be aborted.\n\n"
        + _table(("code", *(name for name, _, _ in columns)), rows)
    )


def _prose(cls: type) -> str:
    """Return the docstring of a class in one line, without its example."""
    paragraphs = inspect.getdoc(cls).split("\n\n") if cls.__doc__ else []
    return " ".join(
        " ".join(each.split())
        for each in paragraphs
        if not each.startswith((">>>", "The parameters are"))
    )


# --- metrics


def metrics_page() -> str:
    """Return the page of the metrics of a producer and of a consumer."""
    return _page(
        "Metrics",
        "`KafkaProducer.metrics()` and `KafkaConsumer.metrics()` have these metrics, under the "
        "names, groups and tags of Kafka's Java clients. Every metric has the tag `client-id`. "
        "Rates, averages and maxima cover the last `metrics.num.samples` windows of "
        "`metrics.sample.window.ms`; totals count from the "
        "client's start. They are counted per batch and per request, never per record. "
        "The [guide](../guides/operations.md#metrics) shows how to read them.",
        *(
            part
            for group, title in (
                (PRODUCER_GROUP, "of a producer"),
                (TOPIC_GROUP, "of each topic, with the tag `topic`"),
                ("producer-node-metrics", "of each broker, with the tag `node-id`"),
            )
            for part in (f"## {group}", f"The metrics {title}.", _metrics_of(group))
        ),
        *(
            part
            for group, title in (
                (CONSUMER_GROUP, "of a consumer; those of each broker are named as a producer's"),
                (COORDINATOR_GROUP, "of a member of a group"),
                (FETCH_GROUP, "of its fetches; others have the tags `topic` and `partition`"),
            )
            for part in (f"## {group}", f"The metrics {title}.", _consumer_metrics_of(group))
        ),
        "## The report of a Spark write",
        "The report of a write has these totals of the producers of all its tasks. They are those "
        "of `KafkaProducer.metrics_snapshot().as_dict()`. A value is null if nothing was recorded "
        "for it.",
        "\n".join(
            f"- `{name}`" for name in MetricsSnapshot(records_per_request=Summary()).as_dict()
        ),
    )


def _metrics_of(group: str) -> str:
    metrics = Metrics(MetricConfig(), clock=lambda: 0.0, reporters=[])
    sender = SenderMetrics(metrics)
    pool = SimpleNamespace(total_bytes=0, available_bytes=0, waiting_threads=0)
    batch = SimpleNamespace(
        topic_partition=TopicPartition("topic", 0),
        **dict.fromkeys(("record_count", "size_bytes", "uncompressed_bytes"), 100),
        max_record_bytes=100,
        created_at=0.0,
    )
    sender.observe_buffer(pool)
    sender.observe_client(requests_in_flight=lambda: 0, metadata_updated_at=lambda: 0.0)
    sender.on_batches_drained([batch], 0.0)
    sender.connected(1)
    found = {name.name: name.description for name in metrics.metrics() if name.group == group}
    return _table(("metric", "meaning"), ((f"`{name}`", found[name]) for name in sorted(found)))


def _consumer_metrics_of(group: str) -> str:
    metrics = Metrics(MetricConfig(), clock=lambda: 0.0, reporters=[])
    ConsumerMetrics(
        metrics,
        has_group=True,
        is_classic=True,
        assigned_partitions=lambda: 0,
        preferred_replica=lambda _: None,
    )
    found = {name.name: name.description for name in metrics.metrics() if name.group == group}
    return _table(("metric", "meaning"), ((f"`{name}`", found[name]) for name in sorted(found)))


# --- the map of the package


def layers_map() -> str:
    """Return a table of the layers, with what each may import and the rooms in it."""
    rows = []
    for layer in LAYERS:
        module = ROOT / PACKAGE / f"{layer}.py"
        source = module if module.exists() else ROOT / PACKAGE / layer / "__init__.py"
        rooms = [room for room in ROOMS.get(layer, {}) if room != TOP]
        rows.append(
            (
                f"`{layer}.py`" if module.exists() else f"`{layer}/`",
                _summary(source),
                ", ".join(f"`{room}`" for room in rooms),
                ", ".join(sorted(LAYERS[layer] - {"errors", "model", "display"})),
            )
        )
    return _table(("layer", "what it owns", "its rooms, the lowest first", "imports"), rows) + (
        "\nEvery layer may import `errors`, `model` and `display`.\n\n"
        + "\n".join(map(_rooms_of, _layers_with_rooms()))
    )


def _layers_with_rooms() -> list[str]:
    return [layer for layer in LAYERS if layer in ROOMS]


def _rooms_of(layer: str) -> str:
    rows = []
    for room, imported in ROOMS[layer].items():
        place = ROOT / PACKAGE / layer / room
        source = place.with_suffix(".py") if room != TOP else place.parent / "__init__.py"
        source = source if source.exists() else place / "__init__.py"
        name = "(modules beside the rooms)" if room == TOP else f"`{room}`"
        rows.append(
            (
                name,
                "" if room == TOP else _summary(source),
                ", ".join("(beside)" if each == TOP else f"`{each}`" for each in imported),
            )
        )
    return f"### {layer}\n\n" + _table(("room", "what it owns", "imports"), rows)


def _summary(module: Path) -> str:
    """Return the first sentence of a module's docstring."""
    found = re.match(r'"""(.*?)(?:\n\n|""")', module.read_text(), re.DOTALL)
    return " ".join(found[1].split()) if found else ""


# --- Markdown


def _page(title: str, *parts: str) -> str:
    return (
        "\n\n".join([f"# {title}", _NOTE, *(_wrapped(part.strip("\n")) for part in parts)]) + "\n"
    )


def _wrapped(part: str, width: int = 118) -> str:
    """Split long lines of prose; rows of tables cannot be split."""
    lines: list[str] = []
    for line in part.split("\n"):
        if line.startswith(("|", "#", "<")):
            lines.append(line)
            continue
        indent = "  " if line.startswith("- ") else ""
        current = ""
        for word in line.split(" "):
            if current and len(current) + 1 + len(word) > width:
                lines.append(current)
                current = indent + word
            else:
                current = f"{current} {word}" if current else word
        lines.append(current)
    return "\n".join(lines)


def _names(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(headings) + " |", "|---" * len(headings) + "|"]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Write the pages, and print the names of those that have changed."""
    for path, text in pages().items():
        if not path.exists() or path.read_text() != text:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
            print(path.relative_to(ROOT))
    return 0


if __name__ == "__main__":
    sys.exit(main())
