from __future__ import annotations

import logging

import pytest

from spark_kafka_sink.spark.announcements import announce


@pytest.fixture
def logger():
    """Yield a logger as in a Python process of Spark, in which nothing configures logging."""
    new = logging.Logger("test.report")  # noqa: LOG001 -- for one test
    new.parent = None
    yield new
    new.handlers.clear()


def test_a_line_is_printed_where_no_logging_is_configured(logger, capsys):
    """Without handlers, a line of level INFO would be lost, so it is printed."""
    announce(logger, "Kafka: wrote 1 row")
    assert "Kafka: wrote 1 row\n" == capsys.readouterr().out


def test_a_configured_level_silences_the_line(logger, capsys):
    """The level of the logger silences it."""
    logger.setLevel(logging.WARNING)
    announce(logger, "Kafka: wrote 1 row")
    assert "" == capsys.readouterr().out


def test_a_level_above_the_logger_silences_the_line(logger, capsys):
    """The level of the package's logger counts as well."""
    logger.parent = logging.Logger("test", logging.ERROR)  # noqa: LOG001 -- for one test
    announce(logger, "Kafka: wrote 1 row")
    assert "" == capsys.readouterr().out


def test_a_line_is_logged_where_logging_is_configured(logger, capsys):
    """With a handler, the line is logged and not printed, although the root takes only warnings."""
    records = []
    logger.parent = logging.RootLogger(logging.WARNING)
    handler = logging.Handler()
    handler.emit = records.append
    logger.parent.addHandler(handler)
    announce(logger, "Kafka: 100%")
    assert [("Kafka: 100%", logging.INFO)] == [(r.getMessage(), r.levelno) for r in records]
    assert "" == capsys.readouterr().out
