"""Log lines that programs can parse: one JSON object for each event of a stream."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from spark_kafka_sink.observability.stream_event import StreamEvent

#: The logger whose messages are nothing but JSON.
LOGGER_NAME: Final = "spark_kafka_sink.stream_events"


class JsonLogExporter:
    """An exporter to a `logger`, by default `spark_kafka_sink.stream_events`, at a `level`.

    Each message is one JSON object without line breaks, with the keys of `StreamEvent.as_dict`;
    what is not known is left out.

    >>> exporter = JsonLogExporter(level=10)
    """

    def __init__(self, logger: logging.Logger | None = None, level: int = logging.INFO) -> None:
        self._logger = logger or logging.getLogger(LOGGER_NAME)
        self._level = level

    def export(self, event: StreamEvent) -> None:
        """Log an `event`."""
        if self._logger.isEnabledFor(self._level):
            self._logger.log(self._level, "%s", json.dumps(event.as_dict()))
