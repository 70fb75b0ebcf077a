"""Parts shared by the commands that connect to a cluster: options, settings and output.

The output never contains a secret, nor control characters from data that others have written. What
the encoding of standard output lacks is printed as an escape, so that no name makes a command fail
after it has changed something.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import os
import sys
import unicodedata
from contextlib import ExitStack, contextmanager, redirect_stderr
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TextIO

from spark_kafka_sink.config.config_def import ConfigDef, ConfigType
from spark_kafka_sink.config.properties import parse_properties
from spark_kafka_sink.config.references import has_reference
from spark_kafka_sink.display import printable
from spark_kafka_sink.errors import ConfigError, KafkaTimeoutError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence


#: The exit codes that these commands have in common.
OK: Final = 0
REFUSED: Final = 1
WRONG_USAGE: Final = 2
#: 3 is a code of `pykafka-transactions`.
NOT_PRINTED: Final = 4
#: As shells report a command that Ctrl-C has ended: 128 and the number of SIGINT.
INTERRUPTED: Final = 130
#: As shells report a command that writes to a closed pipe: 128 and the number of SIGPIPE.
PIPE_CLOSED: Final = 141
_BOOTSTRAP: Final = "bootstrap.servers"
_NONE: Final = "-"
#: What a table shows for an empty name, which would be invisible.
_EMPTY: Final = '""'
#: The categories of marks that a terminal draws over the character before them.
_OVERLAID: Final = {"Mn", "Me"}
#: The widths of characters that take two columns of a terminal (Unicode Standard Annex 11).
_WIDE: Final = {"W", "F"}


class OutputError(Exception):
    """Standard output is closed, or the operating system does not accept what is written to it.

    `has_changed` is whether the command had changed the cluster by then.
    """

    def __init__(self, cause: OSError | None, *, has_changed: bool) -> None:
        super().__init__("standard output is closed" if cause is None else cause.strerror)
        self.is_closed_pipe = isinstance(cause, BrokenPipeError)
        self.has_changed = has_changed


@dataclass(frozen=True, slots=True)
class TimeLimit:
    """The time limit of a command, which all of its requests share.

    `seconds` is what `--timeout` says; `ends_at` is in seconds of `clock`.
    """

    seconds: float
    ends_at: float
    clock: Callable[[], float]

    @classmethod
    def of(cls, seconds: float, clock: Callable[[], float]) -> TimeLimit:
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
        help="a .properties file of client settings, as for Kafka's own tools, in UTF-8 or else "
        "in ISO-8859-1",
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
            settings.update(parse_properties(_text_of(options.command_config)))
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


def _text_of(path: Path) -> str:
    """Return the text of a .properties file, the same in every locale.

    Editors write UTF-8 today, some with a byte order mark. Java reads ISO-8859-1, in which bytes
    above 127 are hardly ever valid UTF-8: both kinds of files are read as they were meant.
    """
    data = path.read_bytes()
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return data.decode("iso-8859-1")


def parse_arguments(
    parser: argparse.ArgumentParser, arguments: Sequence[str] | None
) -> argparse.Namespace:
    """Return the options; raises OutputError if the help cannot be printed."""
    with _printing(has_changed=False):
        try:
            return parser.parse_args(arguments)
        except SystemExit:
            if sys.stdout is not None:
                sys.stdout.flush()  # Otherwise Python does, after this command has ended.
            raise


def say(
    lines: Sequence[str], answer: dict[str, Any], *, as_json: bool, has_changed: bool = False
) -> None:
    """Print the result, as text or as JSON; raises OutputError if that fails.

    `has_changed` is whether the command has changed the cluster.
    """
    if as_json:
        # `json.dumps` escapes all other control characters.
        text = json.dumps(answer, indent=2).replace("\x7f", "\\u007f")
    else:
        text = "\n".join(map(_legible, lines))
    if sys.stdout is None:
        raise OutputError(None, has_changed=has_changed)
    with _printing(has_changed=has_changed):
        sys.stdout.write(text + "\n")
        sys.stdout.flush()


@contextmanager
def _printing(*, has_changed: bool) -> Iterator[None]:
    """Raise an OutputError instead of the OSError of a write."""
    try:
        yield
    except OSError as error:
        if sys.stdout is not None:
            _discard(sys.stdout)
        raise OutputError(error, has_changed=has_changed) from error


def _discard(stream: TextIO) -> None:
    """Connect a stream that cannot be written to the null device.

    Python flushes it at exit, and would report the same error again (see "Note on SIGPIPE" in the
    documentation of Python's `signal`).
    """
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, stream.fileno())
    os.close(null)


def _legible(text: str) -> str:
    """Return a text in which only escapes stand for what standard output cannot show."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    return printable(text).encode(encoding, "backslashreplace").decode(encoding)


def table(heading: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return lines with the columns aligned; the last one may have any width."""
    cells = [[_legible(cell or _EMPTY) for cell in row] for row in (heading, *rows)]
    widths = [max(map(_columns, column)) for column in zip(*cells, strict=True)]
    return [
        "  ".join(
            cell + " " * (width - _columns(cell)) for cell, width in zip(row, widths, strict=True)
        ).rstrip()
        for row in cells
    ]


def _columns(text: str) -> int:
    """Return how many columns of a terminal a text takes."""
    return sum(
        0
        if unicodedata.category(character) in _OVERLAID
        else 1 + (unicodedata.east_asian_width(character) in _WIDE)
        for character in text
    )


def shown(value: object) -> str:
    """Return a cell of a table: the value, or a dash for None and empty texts."""
    return _NONE if value is None or value == "" else str(value)


def run_command(command: Callable[[], int]) -> int:
    """Run a command and return its exit code, even if Ctrl-C or its output has ended it."""
    with ExitStack() as stack:
        if sys.stderr is None:  # It is closed: write errors and warnings to nowhere.
            null = stack.enter_context(Path(os.devnull).open("w", encoding="utf-8"))
            stack.enter_context(redirect_stderr(null))
        try:
            return command()
        except KeyboardInterrupt:
            return interrupted()
        except OutputError as error:
            return _unprinted(error)
        finally:
            with _as_far_as_possible():
                sys.stderr.flush()


def _unprinted(error: OutputError) -> int:
    """Report that the output is lost, unless its reader has gone, and return the exit code."""
    if error.is_closed_pipe:
        return PIPE_CLOSED
    what = "the change was made, but the" if error.has_changed else "the"
    complain(f"error: {what} output could not be written: {error}")
    return NOT_PRINTED


def complain(text: str) -> None:
    """Write a line to standard error, without the control characters of foreign data."""
    with _as_far_as_possible():
        sys.stderr.write(printable(text) + "\n")


@contextmanager
def _as_far_as_possible() -> Iterator[None]:
    """Write to standard error; without a reader, only the exit code tells what happened."""
    try:
        yield
    except OSError:
        _discard(sys.stderr)


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
