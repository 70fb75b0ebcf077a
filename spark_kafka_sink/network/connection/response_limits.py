"""The size limits of responses, before and after the broker has authenticated."""

from __future__ import annotations

from typing import Final, NamedTuple

from spark_kafka_sink.protocol.primitives import MAX_ELEMENTS


class ResponseLimits(NamedTuple):
    """The limits of one response."""

    frame_bytes: int
    #: The number of array elements and tagged fields, in total.
    elements: int


#: For responses until the broker has authenticated and returned its API versions: they are short,
#: and may come from a stranger.
FIRST_RESPONSES: Final = ResponseLimits(frame_bytes=512 * 1024, elements=10_000)
#: No response to a producer's request comes near this; a larger size is a lie or another protocol.
LATER_RESPONSES: Final = ResponseLimits(frame_bytes=128 * 1024 * 1024, elements=MAX_ELEMENTS)
