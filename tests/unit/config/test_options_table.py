from __future__ import annotations

import pytest

from spark_kafka_sink.config.options_table import main, options_table
from spark_kafka_sink.config.producer_settings import PRODUCER_CONFIG_DEF


def test_both_tables_are_printed(capsys):
    """Without an argument, both tables are printed."""
    assert 0 == main([])
    assert options_table("sink") + "\n" + options_table("kafka") == capsys.readouterr().out


def test_one_table_is_printed(capsys):
    """With an argument, only that table is printed."""
    assert 0 == main(["sink"])
    assert options_table("sink") == capsys.readouterr().out


def test_an_unknown_table_is_rejected(capsys):
    """The error for an unknown table lists the known ones."""
    with pytest.raises(SystemExit):
        main(["spark"])
    assert "there is no table 'spark': choose sink or kafka" in capsys.readouterr().err


def test_every_setting_has_a_row():
    """The producer's table has one row per setting, with the option's name."""
    rows = options_table("kafka").splitlines()[2:]
    assert [f"| `kafka.{name}` " for name in PRODUCER_CONFIG_DEF.names] == [
        row[: row.index("|", 1)] for row in rows
    ]
