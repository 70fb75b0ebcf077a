"""The tables of options in Markdown.

`python -m spark_kafka_sink.config.options_table` prints both tables; the argument `sink` or `kafka`
selects one.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Final

from spark_kafka_sink.config.client_settings import KAFKA_PREFIX
from spark_kafka_sink.config.producer_settings import PRODUCER_CONFIG_DEF
from spark_kafka_sink.config.sink_options import SINK_OPTIONS_DEF

if TYPE_CHECKING:
    from collections.abc import Sequence

TABLES: Final = ("sink", "kafka")


def options_table(table: str) -> str:
    """Return one of `TABLES`: the sink's own options, or the producer's settings."""
    if table == "sink":
        return SINK_OPTIONS_DEF.to_markdown()
    return PRODUCER_CONFIG_DEF.to_markdown(prefix=KAFKA_PREFIX)


def main(arguments: Sequence[str]) -> int:
    """Print the selected tables, or both if none is selected."""
    parser = argparse.ArgumentParser(prog="options_table", description="Print tables of options.")
    parser.add_argument("tables", nargs="*", metavar="table", help=" or ".join(TABLES))
    wanted = parser.parse_args(arguments).tables or TABLES
    for name in wanted:
        if name not in TABLES:
            parser.error(f"there is no table {name!r}: choose {' or '.join(TABLES)}")
    sys.stdout.write("\n".join(options_table(table) for table in wanted))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
