from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kafka_sink.config.allow_lists import PATHS
from spark_kafka_sink.errors import ConfigError, KafkaError
from spark_kafka_sink.model import TopicPartition
from spark_kafka_sink.spark.source.offsets_json import offsets_json
from spark_kafka_sink.spark.source_offsets import (
    check_offsets_directory,
    may_have_run,
    offsets_directory,
    read_source_offsets,
    source_offsets,
)

METADATA = '{"batchWatermarkMs":0,"batchTimestampMs":1760000000000,"conf":{}}'
#: As `KafkaSourceOffset` of Spark 4.2 writes it.
KAFKA = '{"b":{"3":9000000000},"orders.eu-1":{"0":42,"10":0}}'
KAFKA_OFFSETS = {
    TopicPartition("b", 3): 9_000_000_000,
    TopicPartition("orders.eu-1", 0): 42,
    TopicPartition("orders.eu-1", 10): 0,
}


def log(*sources, version="v1", metadata=METADATA):
    return "\n".join([version, metadata, *sources])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (log(KAFKA), KAFKA_OFFSETS),
        (log(KAFKA, metadata=""), KAFKA_OFFSETS),
        (log(json.dumps(offsets_json(KAFKA_OFFSETS))), KAFKA_OFFSETS),
        (log("-", '{"logOffset":7}', KAFKA, "12"), KAFKA_OFFSETS),
        (log("0:" + KAFKA, "files:{}", "late:-", version="v2"), KAFKA_OFFSETS),
        (log("-"), {}),
        (log("0:-", version="v2"), {}),
        (log("{}"), {}),
        (
            log('{"a":{"0":5,"1":2}}', '{"a":{"0":3},"c":{"0":1}}'),
            {TopicPartition("a", 0): 3, TopicPartition("a", 1): 2, TopicPartition("c", 0): 1},
        ),
    ],
    ids=[
        "one",
        "old",
        "ours",
        "among-others",
        "v2",
        "none-yet",
        "none-yet-v2",
        "no-topic",
        "several",
    ],
)
def test_the_offsets_of_kafka_sources_are_read(text, expected):
    """Kafka's lines are merged, with the lower offset of a partition; other lines are skipped."""
    assert expected == source_offsets(text)


_offsets = st.dictionaries(
    st.text("abc._-", min_size=1),
    st.dictionaries(st.integers(0, 2**31 - 1), st.integers(0, 2**63 - 1), min_size=1),
    min_size=1,
)


@given(_offsets)
def test_every_offset_of_a_kafka_source_is_found(offsets):
    """Every offset of the line is returned under its topic and partition."""
    line = json.dumps(
        {topic: {str(number): at for number, at in part.items()} for topic, part in offsets.items()}
    )
    expected = {
        TopicPartition(topic, number): at
        for topic, part in offsets.items()
        for number, at in part.items()
    }
    assert expected == source_offsets(log("-", line))
    assert expected == source_offsets(log("x:-", f"y:{line}", version="v2"))


@given(st.text() | st.lists(st.text()).map(lambda lines: log(*lines)))
def test_garbage_raises_only_kafka_errors(text):
    """Any text is either parsed or rejected with a KafkaError."""
    try:
        read = source_offsets(text)
    except KafkaError:
        return
    assert all(0 <= offset for offset in read.values())


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "it does not begin with v1 or v2"),
        (log(KAFKA, version="v3"), "it does not begin with v1 or v2"),
        ("v1", "it ends before the line of the first source"),
        (f"v1\n{METADATA}", "it ends before the line of the first source"),
        (log('{"logOffset":3}'), "none of its sources is Kafka"),
        (log("7", '{"a":{"0":true}}', '{"a":{"x":1}}'), "none of its sources is Kafka"),
        (log("-", KAFKA[:-9]), "line 4 is not valid JSON"),
        (log('{"a":{"0":-1}}'), "line 3 has an invalid position: offset -1 of a-0"),
        (log('{"a":{"2147483648":1}}'), "line 3 has an invalid position: offset 1 of a-2147483648"),
        (log('{"a":{"0":9223372036854775808}}'), "invalid position: offset 9223372036854775808 of"),
        (log("[" * 100_000), "none of its sources is Kafka"),
        (log("[0]", version="v2"), "line 3 has no source id"),
    ],
)
def test_a_file_that_is_not_an_offset_log_is_rejected(text, sentence):
    """A file that is not an offset log is rejected with an error that says what is wrong."""
    with pytest.raises(KafkaError) as caught:
        source_offsets(text)
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    ("location", "directory"),
    [
        ("/c/orders", "/c/orders/offsets"),
        ("file:/c/a b%20", "/c/a b%20/offsets"),
        ("file:///c", "/c/offsets"),
        ("FILE:///c", "/c/offsets"),
        ("relative", "relative/offsets"),
    ],
)
def test_a_local_checkpoint_is_found(location, directory):
    """A path, or a URI of a local file in Hadoop's syntax, leads to the offsets."""
    assert directory == str(offsets_directory(location))


@pytest.mark.parametrize("location", ["s3a://key:hunter2@bucket/c", "hdfs:/c", "file://host/c"])
def test_a_remote_checkpoint_is_rejected(location):
    """The error for a remote location shows its scheme, but not the keys in it."""
    with pytest.raises(ConfigError) as caught:
        offsets_directory(location)
    assert str(caught.value).endswith(f" not on {location.partition(':')[0]}:")
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("location", [None, ""])
def test_an_unknown_checkpoint_location_is_rejected(location):
    """Without the option the offsets cannot be found."""
    with pytest.raises(ConfigError, match="requires checkpointLocation as an option of the stream"):
        offsets_directory(location)


def test_a_missing_checkpoint_directory_is_rejected(tmp_path):
    """A directory that the driver cannot see must be on another file system."""
    with pytest.raises(ConfigError, match="the driver cannot read the directory"):
        check_offsets_directory(str(tmp_path))
    (tmp_path / "offsets").mkdir()
    check_offsets_directory(str(tmp_path))


@pytest.mark.parametrize("right", [os.R_OK, os.X_OK])
def test_the_driver_needs_read_and_execute_permission_on_the_checkpoint(
    tmp_path, monkeypatch, right
):
    """Either right alone is not enough."""
    (tmp_path / "offsets").mkdir()
    monkeypatch.setattr(os, "access", lambda _path, mode: not mode & right)
    with pytest.raises(ConfigError, match="the driver cannot read the directory"):
        check_offsets_directory(str(tmp_path))


def test_the_file_of_the_batch_is_read(tmp_path):
    """The file's name is the batch id, and an error names a missing or invalid file."""
    directory = tmp_path / "offsets"
    directory.mkdir()
    (directory / "7").write_text(log(KAFKA))
    (directory / "8").write_bytes(b"v1\n\xff")
    assert KAFKA_OFFSETS == read_source_offsets(f"file:{tmp_path}", 7)
    with pytest.raises(KafkaError, match=r"offsets/8' is not an offset log of Spark: "):
        read_source_offsets(str(tmp_path), 8)
    with pytest.raises(KafkaError, match=r"could not read the offsets of the batch: .*offsets/9'"):
        read_source_offsets(str(tmp_path), 9)


@pytest.mark.parametrize("content", [b"hunter2\nx", b"v1\nx\n{hunter2", b"v1\n\xffhunter2"])
def test_the_error_for_another_file_does_not_show_its_content(tmp_path, content):
    """The location is an option, so it may lead to a file that nobody meant to show."""
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / "7").write_bytes(content)
    with pytest.raises(KafkaError, match="is not an offset log of Spark: ") as caught:
        read_source_offsets(str(tmp_path), 7)
    assert "hunter2" not in str(caught.value)


def test_a_pipe_in_place_of_the_offsets_does_not_block(tmp_path):
    """Only a regular file is read."""
    (tmp_path / "offsets").mkdir()
    os.mkfifo(tmp_path / "offsets" / "7")
    with pytest.raises(KafkaError, match=r"offsets/7': it is not a regular file$"):
        read_source_offsets(str(tmp_path), 7)


def test_a_checkpoint_location_must_be_allowed(tmp_path, monkeypatch):
    """A checkpoint is read only in the allowed paths, if they are restricted."""
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    for location in (inside, outside):
        (location / "offsets").mkdir(parents=True)
        (location / "offsets" / "7").write_text(log(KAFKA))
    monkeypatch.setenv(PATHS, str(inside))
    assert KAFKA_OFFSETS == read_source_offsets(f"file:{inside}", 7)
    for location in (str(outside), f"file:{inside}/../outside"):
        with pytest.raises(ConfigError, match=f"checkpointLocation: {PATHS} does not allow it"):
            check_offsets_directory(location)
        with pytest.raises(ConfigError, match=f"checkpointLocation: {PATHS} does not allow it"):
            read_source_offsets(location, 7)
    (inside / "offsets" / "8").symlink_to(outside / "offsets" / "7")
    with pytest.raises(KafkaError, match=f"offsets/8': {PATHS} does not allow it"):
        read_source_offsets(str(inside), 8)


@pytest.mark.parametrize("fault", [PermissionError, OSError])
def test_an_unreadable_checkpoint_may_belong_to_a_running_query(tmp_path, monkeypatch, fault):
    """A path without a scheme may belong to another file system than the local one."""
    (tmp_path / "offsets").mkdir()
    assert not may_have_run(str(tmp_path))

    def fail(_path):
        raise fault("no right to look at it")

    monkeypatch.setattr(Path, "is_dir", fail)
    assert may_have_run(str(tmp_path))
