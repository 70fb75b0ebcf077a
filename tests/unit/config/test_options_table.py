from __future__ import annotations

import pytest

from spark_kafka_sink.config.admin_config import ADMIN_CONFIG_DEF
from spark_kafka_sink.config.consumer_config import CONSUMER_CONFIG_DEF, KAFKA_CONSUMER_CONFIG_DEF
from spark_kafka_sink.config.options_table import main, options_table
from spark_kafka_sink.config.producer_config import PRODUCER_CONFIG_DEF
from spark_kafka_sink.config.registry_settings import REGISTRY_CONFIG_DEF
from spark_kafka_sink.config.sink_options import SINK_OPTIONS_DEF
from spark_kafka_sink.config.source_table import SOURCE_OPTIONS_DEF


def test_all_tables_are_printed(capsys):
    """Without an argument, all tables are printed."""
    assert 0 == main([])
    names = ("sink", "kafka", "source", "consumer", "admin", "group-consumer", "registry")
    assert "\n".join(map(options_table, names)) == capsys.readouterr().out


def test_one_table_is_printed(capsys):
    """With an argument, only that table is printed."""
    assert 0 == main(["sink"])
    assert options_table("sink") == capsys.readouterr().out


def test_an_unknown_table_is_rejected(capsys):
    """The error for an unknown table lists the known ones."""
    with pytest.raises(SystemExit):
        main(["spark"])
    assert (
        "there is no table 'spark': choose sink or kafka or source or consumer or admin or "
        "group-consumer or registry" in capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("table", "names"),
    [
        ("sink", SINK_OPTIONS_DEF.names),
        ("kafka", [f"kafka.{name}" for name in PRODUCER_CONFIG_DEF.names]),
        ("source", SOURCE_OPTIONS_DEF.names),
        ("consumer", [f"kafka.{name}" for name in CONSUMER_CONFIG_DEF.names]),
        ("admin", ADMIN_CONFIG_DEF.names),
        ("group-consumer", KAFKA_CONSUMER_CONFIG_DEF.names),
        ("registry", [f"schema.registry.{name}" for name in REGISTRY_CONFIG_DEF.names]),
    ],
)
def test_every_option_has_a_row(table, names):
    """A table has one row per option or setting, with the option's name."""
    rows = options_table(table).splitlines()[2:]
    assert [f"| `{name}` " for name in names] == [row[: row.index("|", 1)] for row in rows]
