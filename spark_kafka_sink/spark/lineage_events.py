"""The events of OpenLineage, as plain data for JSON.

No clock, no files, and not the library of OpenLineage: `lineage` has these. An event contains names
of topics and columns, addresses of brokers, offsets and numbers; never an option, and never a value
of a row.

Datasets have the names that OpenLineage's own integration for Spark gives to those of the format
`kafka` (its classes `KafkaBootstrapServerResolver` and `KafkaRelationVisitor`): the namespace is
the first of the bootstrap servers, the name is the topic. Other than there, each topic of
`subscribe` is a dataset, and `subscribePattern` has the topics that it matches.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from uuid import UUID

from spark_kafka_sink.model import host_and_port
from spark_kafka_sink.version import __version__

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pyspark.sql.types import DataType, StructType

START: Final = "START"
RUNNING: Final = "RUNNING"
COMPLETE: Final = "COMPLETE"
FAIL: Final = "FAIL"

#: A URI, as OpenLineage requires.
PRODUCER: Final = f"urn:spark-kafka-sink:{__version__}"
#: The facet of offsets, and the most partitions that it lists.
OFFSET_RANGES: Final = "sparkKafkaSink_offsetRanges"
MOST_RANGES: Final = 1000
_SPEC: Final = "https://openlineage.io/spec"
_CORE: Final = f"{_SPEC}/2-0-2/OpenLineage.json#/$defs"
_NAMESPACE: Final = "OPENLINEAGE_NAMESPACE"
#: The job that started this one: namespace, name and run id, separated by slashes.
_PARENT: Final = "OPENLINEAGE_PARENT_ID"
_ROOT_PARENT: Final = "OPENLINEAGE_ROOT_PARENT_ID"
_PARENT_PARTS: Final = 3


class SparkApplication(NamedTuple):
    """What tasks know about their application, and the driver's Python processes do not."""

    name: str | None
    application_id: str | None
    #: The id of this run of a stream's query, by which Spark names its jobs; None in a batch.
    run_id: str | None = None


class OffsetRange(NamedTuple):
    """Offsets of a partition; the record at the end is not among them."""

    partition: int
    start: int
    end: int


class LineageRun(NamedTuple):
    """The run of a job, which is the same in all of its events."""

    run_id: str
    job: str
    is_stream: bool = False

    def event(
        self,
        kind: str,
        *,
        at: float,
        environ: Mapping[str, str],
        inputs: Sequence[Mapping[str, Any]] = (),
        outputs: Sequence[Mapping[str, Any]] = (),
        application: SparkApplication | None = None,
        error: str | None = None,
        spark_version: str | None = None,
    ) -> dict[str, Any]:
        """Return an event of a `kind` such as START; `at` is in seconds since 1970."""
        return {
            "eventType": kind,
            "eventTime": datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds"),
            "producer": PRODUCER,
            "run": {
                "runId": self.run_id,
                "facets": _run_facets(environ, application, error, spark_version),
            },
            "job": {
                "namespace": environ.get(_NAMESPACE) or "default",
                "name": self.job,
                "facets": {
                    "jobType": _facet(
                        "JobTypeJobFacet",
                        "2-0-4",
                        processingType="STREAMING" if self.is_stream else "BATCH",
                        integration="SPARK",
                        jobType="JOB",
                    )
                },
            },
            "inputs": list(inputs),
            "outputs": list(outputs),
        }


def namespace_of(servers: Sequence[tuple[str, int]]) -> str:
    """Return the namespace of the topics of a cluster.

    >>> namespace_of([("broker-1", 9092), ("broker-2", 9092)])
    'kafka://broker-1:9092'
    """
    return f"kafka://{host_and_port(*servers[0])}"


def dataset(
    namespace: str, topic: str, fields: Sequence[Mapping[str, Any]] | None
) -> dict[str, Any]:
    """Return a topic; its `fields` are those of `schema_fields`, None if they are not known."""
    facets = {
        "dataSource": _facet(
            "DatasourceDatasetFacet",
            "1-0-1",
            name=namespace,
            uri=namespace,
        )
    }
    if fields is not None:
        facets["schema"] = _facet("SchemaDatasetFacet", "1-2-0", fields=list(fields))
    return {"namespace": namespace, "name": topic, "facets": facets}


def input_dataset(
    namespace: str,
    topic: str,
    fields: Sequence[Mapping[str, Any]] | None,
    ranges: Iterable[OffsetRange],
) -> dict[str, Any]:
    """Return a topic that was read."""
    return {
        **dataset(namespace, topic, fields),
        "inputFacets": _offset_facets("InputDatasetFacet", ranges),
    }


def merged_inputs(datasets: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return each topic once, with the offsets of all its reads."""
    merged: dict[tuple[str, str], dict[str, Any]] = {}
    for read in datasets:
        key = (read["namespace"], read["name"])
        earlier = merged.setdefault(key, dict(read))
        ranges = [
            OffsetRange(shown["partition"], shown["startOffset"], shown["endOffset"])
            for one in ([earlier] if earlier == read else [earlier, read])
            for shown in one["inputFacets"].get(OFFSET_RANGES, {"ranges": ()})["ranges"]
        ]
        earlier["inputFacets"] = _offset_facets("InputDatasetFacet", set(ranges))
    return list(merged.values())


def output_dataset(
    namespace: str,
    topic: str,
    fields: Sequence[Mapping[str, Any]] | None,
    ranges: Iterable[OffsetRange],
    *,
    rows: int,
    size: int,
) -> dict[str, Any]:
    """Return a topic to which `rows` rows were written; `size` is in bytes, as sent."""
    statistics = _facet(
        "OutputStatisticsOutputDatasetFacet",
        "1-0-2",
        rowCount=rows,
        size=size,
    )
    return {
        **dataset(namespace, topic, fields),
        "outputFacets": {
            "outputStatistics": statistics,
            **_offset_facets("OutputDatasetFacet", ranges),
        },
    }


def schema_fields(columns: StructType) -> list[dict[str, Any]]:
    """Return columns as fields of the schema facet, with types named as Spark names them.

    Parts of nested types are named as OpenLineage's integration for Spark does (`PlanUtils`).
    Comments of columns are left out.
    """
    return [_field(field.name, field.dataType) for field in columns.fields]


def _field(name: str, kind: DataType) -> dict[str, Any]:
    type_name = kind.typeName()
    parts: dict[str, DataType] = {}
    nested: Any = kind
    if type_name == "struct":
        parts = {field.name: field.dataType for field in nested.fields}
    elif type_name == "map":
        parts = {"key": nested.keyType, "value": nested.valueType}
    elif type_name == "array":
        parts = {"_element": nested.elementType}
    elif type_name == "decimal":
        type_name = kind.simpleString()
    field: dict[str, Any] = {"name": name, "type": type_name}
    return (
        {**field, "fields": [_field(part, part_kind) for part, part_kind in parts.items()]}
        if parts
        else field
    )


def _facet(kind: str, version: str, /, **values: Any) -> dict[str, Any]:
    url = f"{_SPEC}/facets/{version}/{kind}.json#/$defs/{kind}"
    return {"_producer": PRODUCER, "_schemaURL": url, **values}


def _custom_facet(kind: str, /, **values: Any) -> dict[str, Any]:
    """Return a facet that is not in OpenLineage's specification."""
    return {"_producer": PRODUCER, "_schemaURL": f"{_CORE}/{kind}", **values}


def _offset_facets(kind: str, ranges: Iterable[OffsetRange]) -> dict[str, Any]:
    known = sorted(ranges)
    if not known:
        return {}
    shown = [
        {"partition": partition, "startOffset": start, "endOffset": end}
        for partition, start, end in known[:MOST_RANGES]
    ]
    return {
        OFFSET_RANGES: _custom_facet(kind, ranges=shown, omitted=max(len(known) - MOST_RANGES, 0))
    }


def _run_facets(
    environ: Mapping[str, str],
    application: SparkApplication | None,
    error: str | None,
    spark_version: str | None,
) -> dict[str, Any]:
    facets: dict[str, Any] = {}
    if spark_version is not None:
        facets["processing_engine"] = _facet(
            "ProcessingEngineRunFacet",
            "1-1-1",
            version=spark_version,
            name="spark",
            openlineageAdapterVersion=__version__,
        )
    if application is not None:
        # By the name that the integration for Spark uses.
        facets["spark_applicationDetails"] = _custom_facet(
            "RunFacet", appName=application.name, applicationId=application.application_id
        )
    if error is not None:
        facets["errorMessage"] = _facet(
            "ErrorMessageRunFacet",
            "1-0-1",
            message=error,
            programmingLanguage="PYTHON",
        )
    parent = _job_of(environ.get(_PARENT))
    if parent is not None:
        root = _job_of(environ.get(_ROOT_PARENT))
        facets["parent"] = _facet(
            "ParentRunFacet",
            "1-2-0",
            **parent,
            **({} if root is None else {"root": root}),
        )
    return facets


def _job_of(text: str | None) -> dict[str, Any] | None:
    """Return the run of another job from an environment variable; None if it is not one."""
    parts = [] if text is None else text.rsplit("/", 2)
    if len(parts) != _PARENT_PARTS or not all(parts):
        return None
    namespace, name, run_id = parts
    try:
        UUID(run_id)
    except ValueError:
        return None
    return {"run": {"runId": run_id}, "job": {"namespace": namespace, "name": name}}
