"""The hint that many tasks are faster over Unix domain sockets."""

from __future__ import annotations

import pyspark
import pytest

from spark_kafka_sink.spark import announcements
from spark_kafka_sink.spark.announcements import SETTING, advise_sockets


@pytest.fixture
def environ(tmp_path, monkeypatch):
    """Return the environment of a Python process of Spark's driver."""
    monkeypatch.setattr(pyspark, "__version__", "4.1.0")
    return {"SPARK_LOCAL_DIRS": str(tmp_path)}


def said(caplog):
    """Return what was logged since the last call."""
    text = caplog.text
    caplog.clear()
    return text


def test_a_job_of_many_tasks_says_it_once_in_an_application(environ, caplog):
    """The first of 51 tasks or more says which setting makes them faster."""
    advise_sockets(50, environ)
    assert "" == said(caplog)
    advise_sockets(51, environ)
    assert f"set {SETTING}=true before the session starts\n" in said(caplog)
    advise_sockets(500, environ)
    assert "" == said(caplog)


def test_nothing_is_said_with_the_setting(environ, caplog):
    """Spark tells its workers of the setting in their environment."""
    advise_sockets(500, environ | {"PYTHON_UNIX_DOMAIN_ENABLED": "True"})
    assert "" == said(caplog)


@pytest.mark.parametrize(
    ("version", "is_known"), [("4.0.1", False), ("4.1.0.dev4", True), ("4.10.0", True)]
)
def test_nothing_is_said_where_pyspark_does_not_know_the_setting(
    environ, caplog, monkeypatch, version, is_known
):
    """It came with PySpark 4.1."""
    monkeypatch.setattr(pyspark, "__version__", version)
    advise_sockets(500, environ)
    assert is_known == (SETTING in said(caplog))


def test_nothing_is_said_outside_of_spark(environ, caplog):
    """Without Spark's directories, nothing can be remembered either."""
    advise_sockets(500, {})
    assert "" == said(caplog)


@pytest.mark.parametrize("trouble", ["no directory", "another version"])
def test_a_hint_that_cannot_be_given_fails_no_job(environ, tmp_path, caplog, monkeypatch, trouble):
    """The directory may be gone, or PySpark's version be no number."""
    if trouble == "no directory":
        environ |= {"SPARK_LOCAL_DIRS": str(tmp_path / "missing")}
    else:
        monkeypatch.setattr(pyspark, "__version__", "4.x")
    with caplog.at_level("INFO", announcements.logger.name):
        advise_sockets(500, environ)
    assert f"could not say that {SETTING}=true makes tasks faster" in caplog.text
