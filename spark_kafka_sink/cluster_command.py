"""Parts shared by the commands that connect to a cluster: options, settings and output.

The output never contains a secret, nor control characters from data that others have written.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from spark_kafka_sink.config.config_def import ConfigType
from spark_kafka_sink.config.lookup.java_properties import parse_properties
from spark_kafka_sink.config.lookup.references import has_reference
from spark_kafka_sink.display import printable
from spark_kafka_sink.errors import ConfigError, KafkaTimeoutError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from spark_kafka_sink.config.config_def import ConfigDef

#: The exit codes that these commands have in common.
OK: Final = 0
REFUSED: Final = 1
WRONG_USAGE: Final = 2
#: As shells report a command that Ctrl-C has ended: 128 and the number of SIGINT.
INTERRUPTED: Final = 130
_BOOTSTRAP: Final = "bootstrap.servers"
_NONE: Final = "-"


@dataclass(frozen=True, slots=True)
class TimeLimit:
    """The time limit of a command, which all of its requests share.

    `seconds` is what `--timeout` says; `ends_at` is in seconds of `clock`.
    """

    seconds: float
    ends_at: float
    clock: Callable[[], float]

    @classmethod
    def of(cls, seconds: float, clock: Callable[[], float] = time.monotonic) -> TimeLimit:
        """Start a time limit of this many seconds now."""
        return cls(seconds, clock() + seconds, clock)

    def left(self) -> float:
        """Return the seconds that are left; raises KafkaTimeoutError if there are none."""
        left = self.ends_at - self.clock()
        if left <= 0:
            raise KafkaTimeoutError(
                f"the command took longer than {self.seconds:g} s; --timeout can allow more"
            )
        return left


def add_connection_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that say which cluster to connect to, and how."""
    parser.add_argument(
        "--bootstrap-server", metavar="HOST:PORT,...", help="brokers to connect to first"
    )
    parser.add_argument(
        "--command-config",
        type=Path,
        metavar="FILE",
        help="a .properties file of client settings, as for Kafka's own tools",
    )
    parser.add_argument(
        "--property",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="another client setting, which takes precedence over the file; put secrets in "
        "the file",
    )


def add_output_options(parser: argparse.ArgumentParser) -> None:
    """Add the options for the time limit and for JSON."""
    parser.add_argument(
        "--timeout",
        type=_seconds,
        default=60.0,
        metavar="SECONDS",
        help="the time limit of the command (default: %(default)s)",
    )
    parser.add_argument("--json", action="store_true", help="print the result as a JSON object")


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number of seconds")
    return seconds


def connection_settings(
    options: argparse.Namespace, table: ConfigDef, client_id: str
) -> dict[str, object]:
    """Return the client's settings from the options; raises ConfigError, or OSError for the file.

    `table` says which settings are secrets, which the command line must not have.
    """
    secrets = {key.name for key in table if key.type is ConfigType.PASSWORD}
    settings: dict[str, object] = {}
    if options.command_config is not None:
        try:
            settings.update(parse_properties(options.command_config.read_text()))
        except ValueError as error:
            raise ConfigError(
                f"{options.command_config} is not a valid .properties file: {error}"
            ) from error
    for entry in options.property:
        key, separator, value = entry.partition("=")
        if not separator:
            raise ConfigError("--property must be KEY=VALUE")
        if key.strip() in secrets and not has_reference(value):
            raise ConfigError(
                f"--property {key.strip()}: other users of this machine can see the command line; "
                "put the setting in a file, and pass the file with --command-config"
            )
        settings[key.strip()] = value.strip()
    if options.bootstrap_server is not None:
        settings[_BOOTSTRAP] = options.bootstrap_server
    if _BOOTSTRAP not in settings:
        raise ConfigError(
            f"no cluster given: pass --bootstrap-server, or set {_BOOTSTRAP} in a file"
        )
    return {"client.id": client_id, **settings}


def say(lines: Sequence[str], answer: dict[str, Any], *, as_json: bool) -> None:
    """Print the result, as text or as JSON."""
    if as_json:
        # `json.dumps` escapes all other control characters.
        text = json.dumps(answer, indent=2).replace("\x7f", "\\u007f")
    else:
        text = "\n".join(map(printable, lines))
    sys.stdout.write(text + "\n")


def table(heading: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return lines with the columns aligned; the last one may have any width."""
    widths = [max(map(len, column)) for column in zip(heading, *rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in (heading, *rows)
    ]


def shown(value: object) -> str:
    """Return a cell of a table: the value, or a dash for None and empty texts."""
    return _NONE if value is None or value == "" else str(value)


def complain(text: str) -> None:
    """Write a line to standard error, without the control characters of foreign data."""
    sys.stderr.write(printable(text) + "\n")


def fail(error: Exception, code: int) -> int:
    """Write an error to standard error, and return the exit code."""
    complain(f"error: {error}")
    return code


def interrupted() -> int:
    """Write to standard error that Ctrl-C has ended the command, and return the exit code."""
    complain("interrupted")
    return INTERRUPTED


def log_to_standard_error() -> None:
    """Write warnings, which quote names and brokers, like all other output."""
    handler = logging.StreamHandler()
    handler.setFormatter(_PrintableFormatter())
    logging.basicConfig(handlers=[handler])


class _PrintableFormatter(logging.Formatter):
    """A formatter that escapes what a terminal would interpret."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 -- logging's name
        return printable(super().formatMessage(record))
