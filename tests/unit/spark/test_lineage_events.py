from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql.types import (
    ArrayType,
    DecimalType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from spark_kafka_sink.spark.lineage_events import (
    COMPLETE,
    MOST_RANGES,
    OFFSET_RANGES,
    START,
    LineageRun,
    OffsetRange,
    SparkApplication,
    dataset,
    input_dataset,
    merged_inputs,
    namespace_of,
    output_dataset,
    schema_fields,
)
from spark_kafka_sink.spark.source.columns import default_columns

RUN = LineageRun("5f6b9a30-0000-4000-8000-000000000000", "copy")
KAFKA = namespace_of([("localhost", 9092), ("other", 9093)])
GOLDEN = json.loads((Path(__file__).parent / "golden" / "openlineage_spark.json").read_text())
PARENT = "airflow/orders.copy/0176a8c2-fe01-7439-87e6-56a1a1b4029f"


def event(kind=START, environ=None, **values):
    return RUN.event(kind, at=1.5, environ=environ or {}, **values)


def test_topics_are_named_as_by_the_jvm_integration():
    """Namespace, name, data source and columns are those of OpenLineage's JVM integration."""
    [source] = GOLDEN["runs"][1]["inputs"]
    fields = schema_fields(default_columns(include_headers=False))
    ours = input_dataset(KAFKA, "orders", fields, [])
    shown = {
        "namespace": ours["namespace"],
        "name": ours["name"],
        "schema": ours["facets"]["schema"]["fields"],
        "dataSource": {
            name: value
            for name, value in ours["facets"]["dataSource"].items()
            if not name.startswith("_")
        },
    }
    assert source == shown


@pytest.mark.parametrize(
    ("servers", "namespace"),
    [
        ([("broker-1", 9092), ("broker-2", 9092)], "kafka://broker-1:9092"),
        ([("::1", 9092)], "kafka://[::1]:9092"),
    ],
)
def test_the_first_bootstrap_server_is_the_namespace(servers, namespace):
    """A cluster is named by the first of its bootstrap servers."""
    assert namespace == namespace_of(servers)


def test_nested_columns_are_shown_with_their_parts():
    """Structs, maps and arrays have their parts as fields, by the names of the JVM integration."""
    columns = StructType(
        [
            StructField("a", ArrayType(LongType())),
            StructField("m", MapType(StringType(), DecimalType(10, 2))),
            StructField(
                "s", StructType([StructField("x", StringType())]), metadata={"comment": "?"}
            ),
        ]
    )
    assert [
        {"name": "a", "type": "array", "fields": [{"name": "_element", "type": "long"}]},
        {
            "name": "m",
            "type": "map",
            "fields": [
                {"name": "key", "type": "string"},
                {"name": "value", "type": "decimal(10,2)"},
            ],
        },
        {"name": "s", "type": "struct", "fields": [{"name": "x", "type": "string"}]},
    ] == schema_fields(columns)


def test_an_event_has_run_job_and_datasets():
    """An event has its kind and time, its run, its job, and what it reads and writes."""
    target = dataset(KAFKA, "copies", None)
    made = event(outputs=[target], spark_version="4.3.0", environ={"OPENLINEAGE_NAMESPACE": "shop"})
    assert ("START", "1970-01-01T00:00:01.500+00:00") == (made["eventType"], made["eventTime"])
    assert RUN.run_id == made["run"]["runId"]
    assert ("shop", "copy") == (made["job"]["namespace"], made["job"]["name"])
    assert ("BATCH", "SPARK") == tuple(
        made["job"]["facets"]["jobType"][name] for name in ("processingType", "integration")
    )
    assert "4.3.0" == made["run"]["facets"]["processing_engine"]["version"]
    assert ([], [target]) == (made["inputs"], made["outputs"])
    assert ["dataSource"] == list(target["facets"])


def test_the_namespace_of_jobs_is_default_if_none_is_set():
    """Without OPENLINEAGE_NAMESPACE, or with an empty one, jobs are in the namespace default."""
    namespaces = [
        event(environ=environ)["job"]["namespace"]
        for environ in ({}, {"OPENLINEAGE_NAMESPACE": ""})
    ]
    assert ["default", "default"] == namespaces


def test_a_stream_is_a_streaming_job():
    """The job of a stream says so."""
    made = RUN._replace(is_stream=True).event(START, at=0, environ={})
    assert "STREAMING" == made["job"]["facets"]["jobType"]["processingType"]


def test_the_parent_comes_from_the_environment():
    """OPENLINEAGE_PARENT_ID and OPENLINEAGE_ROOT_PARENT_ID become the run's parent and root."""
    root = "airflow/orders/0176a8c2-fe01-7439-87e6-56a1a1b40290"
    environ = {"OPENLINEAGE_PARENT_ID": PARENT, "OPENLINEAGE_ROOT_PARENT_ID": root}
    parent = event(environ=environ)["run"]["facets"]["parent"]
    assert {"runId": "0176a8c2-fe01-7439-87e6-56a1a1b4029f"} == parent["run"]
    assert {"namespace": "airflow", "name": "orders.copy"} == parent["job"]
    assert {"namespace": "airflow", "name": "orders"} == parent["root"]["job"]
    alone = event(environ={"OPENLINEAGE_PARENT_ID": PARENT})["run"]["facets"]["parent"]
    assert "root" not in alone


@pytest.mark.parametrize("text", ["", "a/b", "a/b/c", f"/{PARENT.partition('/')[2]}"])
def test_a_malformed_parent_is_left_out(text):
    """What is not namespace, name and run id is no parent."""
    assert {} == event(environ={"OPENLINEAGE_PARENT_ID": text})["run"]["facets"]


def test_the_application_and_an_error_are_facets_of_the_run():
    """What tasks know of the application, and why a read failed, are in the run's facets."""
    facets = event(
        COMPLETE, application=SparkApplication("Copy orders", "local-1"), error="no topic t"
    )["run"]["facets"]
    assert "Copy orders" == facets["spark_applicationDetails"]["appName"]
    assert "local-1" == facets["spark_applicationDetails"]["applicationId"]
    assert ("no topic t", "PYTHON") == tuple(
        facets["errorMessage"][name] for name in ("message", "programmingLanguage")
    )


def test_an_output_has_rows_bytes_and_offsets():
    """An output dataset has its statistics and the offsets of each partition, in order."""
    ranges = [OffsetRange(1, 5, 9), OffsetRange(0, 0, 2)]
    facets = output_dataset(KAFKA, "t", [], ranges, rows=6, size=80)["outputFacets"]
    assert (6, 80) == tuple(facets["outputStatistics"][name] for name in ("rowCount", "size"))
    assert [
        {"partition": 0, "startOffset": 0, "endOffset": 2},
        {"partition": 1, "startOffset": 5, "endOffset": 9},
    ] == facets[OFFSET_RANGES]["ranges"]
    assert 0 == facets[OFFSET_RANGES]["omitted"]


def test_a_topic_of_very_many_partitions_has_not_all_of_their_offsets():
    """An event does not grow without limit: it says how many partitions are left out."""
    ranges = (OffsetRange(number, 0, 1) for number in range(MOST_RANGES + 7))
    facet = input_dataset(KAFKA, "t", None, ranges)["inputFacets"][OFFSET_RANGES]
    assert (MOST_RANGES, 7) == (len(facet["ranges"]), facet["omitted"])


def test_unknown_offsets_are_no_facet():
    """Without offsets, as with acks=0, there is no facet of them."""
    assert {} == input_dataset(KAFKA, "t", None, [])["inputFacets"]


def test_every_facet_names_its_producer_and_schema():
    """Each facet has the two fields that OpenLineage requires."""
    made = event(
        inputs=[input_dataset(KAFKA, "t", [], [OffsetRange(0, 0, 1)])],
        outputs=[output_dataset(KAFKA, "t", [], [OffsetRange(0, 0, 1)], rows=1, size=1)],
        environ={"OPENLINEAGE_PARENT_ID": PARENT},
        application=SparkApplication("a", "b"),
        error="e",
        spark_version="4",
    )
    places = [made["run"]["facets"], made["job"]["facets"]]
    for one in (*made["inputs"], *made["outputs"]):
        places += [one[name] for name in ("facets", "inputFacets", "outputFacets") if name in one]
    facets = [facet for place in places for facet in place.values()]
    assert 12 == len(facets)
    assert all(facet["_producer"].startswith("urn:spark-kafka-sink:") for facet in facets)
    assert all(facet["_schemaURL"].startswith("https://openlineage.io/spec/") for facet in facets)


def test_reads_of_one_topic_are_one_input():
    """A topic that is read twice is one input, with the offsets of both reads."""
    reads = [
        input_dataset(KAFKA, "t", [], [OffsetRange(0, 0, 2)]),
        input_dataset(KAFKA, "t", [], [OffsetRange(0, 2, 4)]),
        input_dataset(KAFKA, "u", [], []),
        input_dataset(KAFKA, "t", [], [OffsetRange(0, 0, 2)]),
    ]
    merged = merged_inputs(reads)
    assert ["t", "u"] == [one["name"] for one in merged]
    assert [(0, 2), (2, 4)] == [
        (shown["startOffset"], shown["endOffset"])
        for shown in merged[0]["inputFacets"][OFFSET_RANGES]["ranges"]
    ]
