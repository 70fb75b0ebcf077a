"""The pinned jars of Spark's own Kafka source."""

from __future__ import annotations

import hashlib

import pytest

from tests.support.kafka.kafka_source_jars import pinned_jars

CONTENT = b"a jar"


@pytest.fixture
def directory(tmp_path):
    (tmp_path / "source-1.2.jar").write_bytes(CONTENT)
    (tmp_path / "unrelated-1.jar").write_bytes(b"")
    return tmp_path


def test_jars_with_the_pinned_contents_are_returned(directory):
    """Only the jars of the artifacts are returned, by their names in Maven."""
    artifacts = {"org.example:source:1.2": hashlib.sha256(CONTENT).hexdigest()}
    assert [directory / "source-1.2.jar"] == pinned_jars(directory, artifacts)


def test_a_jar_with_other_contents_is_rejected(directory):
    """A jar that is not the pinned one is an error with both checksums."""
    with pytest.raises(ValueError, match=r"source-1\.2\.jar has the SHA-256 \w+, expected 0123"):
        pinned_jars(directory, {"org.example:source:1.2": "0123"})
