"""The receiver of frames, which does not copy their bytes."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_kafka_sink.devbroker.net.frame_receiver import FrameReceiver
from spark_kafka_sink.errors import DecodeError
from spark_kafka_sink.protocol.api_keys import ApiKey

LIMIT = 20 * 1024 * 1024


def framed(*bodies):
    return b"".join(struct.pack(">i", len(body)) + body for body in bodies)


def receive(stream, *, step, limit=LIMIT, control=LIMIT):
    """Pass a stream in pieces of at most `step` bytes; return the receiver and its frames."""
    receiver = FrameReceiver(limit, control)
    frames = []
    position = 0
    while position < len(stream):
        buffer = receiver.buffer()
        piece = stream[position : position + min(step, len(buffer))]
        buffer[: len(piece)] = piece
        position += len(piece)
        # As asyncio does, release the buffer before requesting the next one.
        del buffer
        receiver.received(len(piece))
        while (frame := receiver.next_frame()) is not None:
            frames.append(frame)
    return receiver, frames


BODIES = [b"", b"a", bytes(range(256)) * 3, b"x" * 65532, b"y" * 65533, b"z" * 200_000, b"end"]


@pytest.mark.parametrize("step", [1000, 65536, 10**9])
def test_frames_come_whole_and_in_order(step):
    """Frames of any size are returned unchanged, however their bytes arrive."""
    receiver, frames = receive(framed(*BODIES), step=step)

    assert BODIES == [bytes(frame) for frame in frames]
    assert not receiver.is_partial


def test_frames_come_byte_by_byte():
    """A frame is returned once its last byte has arrived."""
    _, frames = receive(framed(b"one", b"", b"three"), step=1)

    assert [b"one", b"", b"three"] == [bytes(frame) for frame in frames]


def test_frames_can_be_written_to_and_do_not_share_memory():
    """The caller owns the frames that it receives."""
    _, (first, second) = receive(framed(b"first", b"second"), step=10**9)

    first[:] = b"FIRST"

    assert (b"FIRST", b"second") == (bytes(first), bytes(second))


def test_a_large_frame_is_received_where_it_stays():
    """The buffer that receives the bytes is the memory of the frame."""
    receiver = FrameReceiver(LIMIT, LIMIT)
    head = struct.pack(">i", 100_000)
    receiver.buffer()[: len(head)] = head
    receiver.received(len(head))
    assert None is receiver.next_frame()

    buffer = receiver.buffer()
    receiver.received(len(buffer))
    frame = receiver.next_frame()

    assert (100_000, True) == (len(buffer), buffer.obj is frame.obj)


def test_a_size_is_not_believed_before_its_bytes_arrive():
    """Memory is allocated as bytes arrive, not as the size announces."""
    receiver = FrameReceiver(100 << 20, 100 << 20)
    head = struct.pack(">i", 100 * 1024 * 1024)
    receiver.buffer()[: len(head)] = head
    receiver.received(len(head))
    receiver.next_frame()

    sizes = []
    for _ in range(3):
        buffer = receiver.buffer()
        sizes.append(len(buffer))
        count = len(buffer)
        del buffer
        receiver.received(count)

    assert [128 << 10, 128 << 10, 256 << 10] == sizes


def test_the_buffer_of_the_next_frame_starts_as_large_as_the_largest():
    """The next frame's buffer starts as large as the largest frame so far, up to a limit."""
    receiver = FrameReceiver(100 << 20, 100 << 20)
    sizes = []
    for size in (1 << 20, 10 << 20, 10 << 20):
        head = struct.pack(">i", size)
        receiver.buffer()[: len(head)] = head
        receiver.received(len(head))
        receiver.next_frame()
        sizes.append(len(receiver.buffer()))
        while receiver.is_partial:
            receiver.received(len(receiver.buffer()))
            receiver.next_frame()

    assert [128 << 10, 1 << 20, 4 << 20] == sizes


@pytest.mark.parametrize("size", [-1, -(2**31), LIMIT + 1, 2**31 - 1])
def test_an_impossible_size_is_refused_at_once(size):
    """A negative or excessive size raises DecodeError as soon as it is read."""
    with pytest.raises(DecodeError):
        receive(struct.pack(">i", size), step=4)


@pytest.mark.parametrize("step", [1, 5, 10**9])
def test_only_produce_requests_may_be_large(step):
    """The second limit applies to all other APIs, and is checked once the API key has arrived."""
    produce = struct.pack(">h", ApiKey.PRODUCE) + b"x" * 100
    metadata = struct.pack(">h", ApiKey.METADATA) + b"x" * 98
    _, frames = receive(framed(metadata, produce), step=step, control=100)
    assert [metadata, produce] == [bytes(frame) for frame in frames]

    with pytest.raises(DecodeError, match="a frame of 101 bytes with API key 3; the limit is 100"):
        receive(framed(metadata + b"x")[:6], step=step, control=100)


def test_a_frame_of_the_largest_size_is_accepted():
    """A frame of exactly the limit is accepted."""
    _, frames = receive(framed(b"x" * 1000), step=64, limit=1000)

    assert [1000] == [len(frame) for frame in frames]


def test_the_rest_of_a_frame_is_known_to_be_missing():
    """The receiver is partial while it has received only part of a frame."""
    receiver, frames = receive(framed(b"whole") + b"\0\0\0\x09part", step=10**9)

    assert ([b"whole"], True) == ([bytes(frame) for frame in frames], receiver.is_partial)


@settings(max_examples=60)
@given(
    sizes=st.lists(st.sampled_from([0, 1, 3, 60_000, 65_532, 65_536, 70_000]), max_size=6),
    step=st.integers(1, 100_000),
)
def test_any_cut_of_the_stream_gives_the_same_frames(sizes, step):
    """The way in which the stream is split makes no difference."""
    bodies = [bytes([n % 251]) * size for n, size in enumerate(sizes)]

    _, frames = receive(framed(*bodies), step=max(step, 997))

    assert bodies == [bytes(frame) for frame in frames]
