"""How large a broker's answer may be, before and after the broker has shown who it is."""

from __future__ import annotations

from typing import Final, NamedTuple

from spark_kafka_sink.protocol.primitives import MAX_ELEMENTS


class ResponseLimits(NamedTuple):
    """The limits of one answer."""

    frame_bytes: int
    #: Elements of arrays, and tagged fields, in all.
    elements: int


#: Until the broker has authenticated and told its API versions: those answers are short, and a
#: stranger may have sent them.
FIRST_RESPONSES: Final = ResponseLimits(frame_bytes=512 * 1024, elements=10_000)
#: No answer to a producer's request comes near this; a larger size is a lie or another protocol.
LATER_RESPONSES: Final = ResponseLimits(frame_bytes=128 * 1024 * 1024, elements=MAX_ELEMENTS)
