"""The lineage of reads and writes, at a backend that the driver's Python processes find."""

from __future__ import annotations

from tests.support.spark.lineage_backend import edges

NUMBERS = "cast(id as string) key", "cast(id as string) value"


def outline(events, job):
    """Return the kind of each event of a job, with the rows that it has."""
    return sorted(
        (
            event["eventType"],
            [
                one["outputFacets"]["outputStatistics"]["rowCount"]
                for one in event["outputs"]
                if one.get("outputFacets")
            ],
        )
        for event in events
        if event["job"]["name"] == job
    )


def test_copies_of_a_topic_have_its_lineage(topics, spark, tmp_path, lineage_backend):
    """A batch and a stream that copy a topic report it as their input, and what they wrote."""
    source, copy, stream_copy = (topics.create(2) for _ in range(3))
    topics.write(spark.range(10, numPartitions=1).selectExpr(*NUMBERS), source, report="none")
    options = {**topics.servers, "lineage": "openlineage"}
    read = spark.read.format("pykafka").options(**options, subscribe=source).load()
    topics.write(read.select("key", "value"), copy, lineage="openlineage", report="none")
    query = (
        spark.readStream.format("pykafka")
        .options(**options, subscribe=source, startingOffsets="earliest")
        .load()
        .select("key", "value")
        .writeStream.format("pykafka")
        .options(**options, topic=stream_copy, report="none")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    of_batch, of_stream = f"pykafka_write.{copy}", f"pykafka_stream.{stream_copy}"
    events = lineage_backend.wait_for(
        lambda events: len(outline(events, of_batch)) == len(outline(events, of_stream)) == 2
    )
    kafka = f"kafka://{topics.servers['kafka.bootstrap.servers']}"
    ours = [event for event in events if event["job"]["name"] in {of_batch, of_stream}]
    assert {((kafka, source), (kafka, to)) for to in (copy, stream_copy)} == edges(ours)
    assert [("COMPLETE", [10]), ("START", [])] == outline(events, of_batch)
    assert [("RUNNING", [10]), ("START", [])] == outline(events, of_stream)
    assert {str(query.runId)} == {
        event["run"]["runId"] for event in events if event["job"]["name"] == of_stream
    }
