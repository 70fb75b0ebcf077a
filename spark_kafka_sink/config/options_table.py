"""The tables of options in Markdown.

`python -m spark_kafka_sink.config.options_table` prints all tables; arguments, such as `sink` and
`kafka`, select some.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Final

from spark_kafka_sink.config.admin_config import ADMIN_CONFIG_DEF
from spark_kafka_sink.config.client_config import KAFKA_PREFIX
from spark_kafka_sink.config.consumer_config import CONSUMER_CONFIG_DEF, KAFKA_CONSUMER_CONFIG_DEF
from spark_kafka_sink.config.producer_config import PRODUCER_CONFIG_DEF
from spark_kafka_sink.config.registry_settings import REGISTRY_CONFIG_DEF, REGISTRY_PREFIX
from spark_kafka_sink.config.sink_options import SINK_OPTIONS_DEF
from spark_kafka_sink.config.source_table import SOURCE_OPTIONS_DEF

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spark_kafka_sink.config.config_def import ConfigDef

#: The rows of each table, and the prefix of their names.
TABLES: Final[dict[str, tuple[ConfigDef, str]]] = {
    "sink": (SINK_OPTIONS_DEF, ""),
    "kafka": (PRODUCER_CONFIG_DEF, KAFKA_PREFIX),
    "source": (SOURCE_OPTIONS_DEF, ""),
    "consumer": (CONSUMER_CONFIG_DEF, KAFKA_PREFIX),
    "admin": (ADMIN_CONFIG_DEF, ""),
    "group-consumer": (KAFKA_CONSUMER_CONFIG_DEF, ""),
    "registry": (REGISTRY_CONFIG_DEF, REGISTRY_PREFIX),
}


def options_table(table: str) -> str:
    """Return one of `TABLES`.

    They are the sink's own options, the producer's settings, the source's own options, the settings
    of reads, the admin client's, those of `KafkaConsumer`, and those of a Schema Registry.
    """
    rows, prefix = TABLES[table]
    return rows.to_markdown(prefix=prefix)


def main(arguments: Sequence[str]) -> int:
    """Print the selected tables, or all if none is selected."""
    parser = argparse.ArgumentParser(prog="options_table", description="Print tables of options.")
    parser.add_argument("tables", nargs="*", metavar="table", help=" or ".join(TABLES))
    selected = parser.parse_args(arguments).tables or TABLES
    for name in selected:
        if name not in TABLES:
            parser.error(f"there is no table {name!r}: choose {' or '.join(TABLES)}")
    sys.stdout.write("\n".join(options_table(table) for table in selected))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
