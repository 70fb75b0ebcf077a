"""The cache of Kafka's jars."""

from __future__ import annotations

import pytest

from tests.support.kafka_files import copy_with_maven
from tests.support.kafka_unavailable import KafkaUnavailableError

# Stands in for Maven: writes a jar where it is told to, and ends as it is told to.
FAKE_MAVEN = """#!/bin/sh
for argument; do case "$argument" in -DoutputDirectory=*) target="${{argument#*=}}";; esac; done
mkdir -p "$target" && echo jar > "$target/a.jar"
echo "what Maven says"
exit {status}
"""


@pytest.fixture
def fake_maven(tmp_path, monkeypatch):
    def install(status: int) -> None:
        command = tmp_path / "bin" / "mvn"
        command.parent.mkdir()
        command.write_text(FAKE_MAVEN.format(status=status))
        command.chmod(0o755)
        monkeypatch.setenv("PATH", str(command.parent), prepend=":")

    return install


def test_a_whole_download_appears_under_its_name(tmp_path, fake_maven):
    """What Maven copied is found in the directory asked for, and nothing else beside it."""
    fake_maven(0)
    copy_with_maven(["g:a:1"], tmp_path / "cache" / "1")
    assert ["jar\n"] == [jar.read_text() for jar in (tmp_path / "cache" / "1").iterdir()]
    assert ["1"] == [path.name for path in (tmp_path / "cache").iterdir()]


def test_a_failed_download_leaves_nothing(tmp_path, fake_maven):
    """A download that fails half-way is reported with Maven's words and not kept."""
    fake_maven(1)
    with pytest.raises(KafkaUnavailableError, match="what Maven says"):
        copy_with_maven(["g:a:1"], tmp_path / "cache" / "1")
    assert [] == list((tmp_path / "cache").iterdir())


def test_a_copy_made_meanwhile_is_kept(tmp_path, fake_maven):
    """Where another test run has finished the same download first, its copy stays."""
    fake_maven(0)
    other = tmp_path / "cache" / "1" / "other.jar"
    other.parent.mkdir(parents=True)
    other.touch()
    copy_with_maven(["g:a:1"], tmp_path / "cache" / "1")
    assert [other] == list(other.parent.iterdir())


def test_no_maven_is_a_reason(tmp_path, monkeypatch):
    """Without Maven the reason says so."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(KafkaUnavailableError, match="not installed"):
        copy_with_maven(["g:a:1"], tmp_path / "cache" / "1")
