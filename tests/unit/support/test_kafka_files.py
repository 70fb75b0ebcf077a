"""The cache of Kafka's jars."""

from __future__ import annotations

import hashlib

import pytest

from tests.support.kafka.kafka_files import copy_with_maven, is_older
from tests.support.kafka.kafka_unavailable import KafkaUnavailableError

# A stand-in for Maven that writes a jar to the output directory and exits as configured.
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


def locking(directory, content="jar\n", name="a.jar"):
    """Return a lock file with one jar."""
    lock = directory / "jars.lock"
    lock.write_text(f"{hashlib.sha256(content.encode()).hexdigest()}  {name}\n")
    return lock


def test_a_complete_download_appears_under_its_name(tmp_path, fake_maven):
    """The target directory has the files that Maven copied, and its parent nothing else."""
    fake_maven(0)
    copy_with_maven(["g:a:1"], tmp_path / "cache" / "1", lock=locking(tmp_path))
    assert ["jar\n"] == [jar.read_text() for jar in (tmp_path / "cache" / "1").iterdir()]
    assert ["1"] == [path.name for path in (tmp_path / "cache").iterdir()]


def test_a_failed_download_leaves_nothing(tmp_path, fake_maven):
    """A download that fails half-way is reported with Maven's output and not kept."""
    fake_maven(1)
    with pytest.raises(KafkaUnavailableError, match="what Maven says"):
        copy_with_maven(["g:a:1"], tmp_path / "cache" / "1")
    assert [] == list((tmp_path / "cache").iterdir())


@pytest.mark.parametrize("locked", [{"content": "another jar\n"}, {"name": "b.jar"}])
def test_a_jar_with_other_contents_is_refused(tmp_path, fake_maven, locked):
    """A jar that the lock file lacks, or has with another hash, is named, and none is kept."""
    fake_maven(0)
    with pytest.raises(KafkaUnavailableError, match=r"a\.jar has the SHA-256"):
        copy_with_maven(["g:a:1"], tmp_path / "cache" / "1", lock=locking(tmp_path, **locked))
    assert [] == list((tmp_path / "cache").iterdir())


def test_a_copy_downloaded_meanwhile_is_kept(tmp_path, fake_maven):
    """If another test run finishes the same download first, its copy is kept."""
    fake_maven(0)
    other = tmp_path / "cache" / "1" / "other.jar"
    other.parent.mkdir(parents=True)
    other.touch()
    copy_with_maven(["g:a:1"], tmp_path / "cache" / "1")
    assert [other] == list(other.parent.iterdir())


def test_missing_maven_is_the_reason(tmp_path, monkeypatch):
    """Without Maven the error gives that as the reason."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(KafkaUnavailableError, match="not installed"):
        copy_with_maven(["g:a:1"], tmp_path / "cache" / "1")


def test_versions_are_compared_by_their_numbers():
    """A version is not compared as text, and a cluster that was given has none."""
    versions = ["3.9.1", "4.3.1", "4.4.0", "4.10.0", "given"]

    assert ["3.9.1", "4.3.1"] == [version for version in versions if is_older(version, "4.4")]
