from __future__ import annotations

import struct
import tracemalloc
from itertools import accumulate

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kafka_sink.errors import DecodeError
from spark_kafka_sink.protocol.frame import (
    LEAST_ROOM,
    MOST_ROOM_IN_ADVANCE,
    MOST_SPARE_BYTES,
    FrameDecoder,
    encode_frame,
)

LIMIT = 1000


def frames_of(*pieces: bytes) -> list[bytes]:
    """Pass pieces one by one; return all frames."""
    decoder = FrameDecoder(LIMIT)
    frames = []
    for piece in pieces:
        decoder.receive_data(piece)
        while (frame := decoder.next_frame()) is not None:
            frames.append(bytes(frame))
    return frames


def wire(*messages: bytes) -> bytes:
    return b"".join(b"".join(encode_frame([message])) for message in messages)


def test_a_frame_begins_with_its_size():
    """The size counts all buffers, which are not copied."""
    buffers = [b"ab", memoryview(b"cdef").cast("H")]
    frame = encode_frame(buffers)
    assert b"\0\0\0\6abcdef" == b"".join(frame)
    assert frame[1] is buffers[0]
    assert frame[2] is buffers[1]


def test_a_frame_in_one_piece_is_decoded():
    """A frame that arrives in one piece is returned at once."""
    assert [b"hello"] == frames_of(wire(b"hello"))


def test_a_frame_byte_by_byte_is_decoded():
    """A frame that arrives byte by byte is returned with its last byte and not before."""
    data = wire(b"hello")
    pieces = [data[i : i + 1] for i in range(len(data))]
    assert [] == frames_of(*pieces[:-1])
    assert [b"hello"] == frames_of(*pieces)


def test_several_frames_at_once_are_decoded_in_order():
    """Frames that arrive together are returned one after the other."""
    assert [b"one", b"", b"three"] == frames_of(wire(b"one", b"", b"three"))


def test_bytes_of_the_next_frame_are_kept():
    """The bytes after a frame are the beginning of the next one."""
    data = wire(b"one", b"two")
    assert [b"one"] == frames_of(data[:-1])
    assert [b"one", b"two"] == frames_of(data[:-1], data[-1:])


@given(st.lists(st.binary(max_size=20), max_size=6), st.data())
def test_frames_do_not_depend_on_how_the_stream_is_split(messages, data):
    """However the stream is split, the decoder returns the same frames."""
    stream = wire(*messages)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    bounds = zip([0, *cuts], [*cuts, len(stream)], strict=True)
    assert messages == frames_of(*(stream[start:end] for start, end in bounds))


def test_a_frame_at_the_limit_is_accepted():
    """The limit is the largest allowed size, without the four bytes of the size itself."""
    assert [bytes(LIMIT)] == frames_of(wire(bytes(LIMIT)))


@pytest.mark.parametrize("size", [LIMIT + 1, 0x7FFFFFFF, -1, -(2**31)])
def test_an_invalid_size_is_refused_at_once(size):
    """A negative size or one above the limit is refused before any of its bytes arrive."""
    decoder = FrameDecoder(LIMIT)
    decoder.receive_data(size.to_bytes(4, "big", signed=True))
    with pytest.raises(DecodeError, match=f"a frame of {size} bytes; the limit is 1000"):
        decoder.next_frame()


def test_a_refusal_is_final():
    """After an invalid size no later bytes are accepted as a frame."""
    decoder = FrameDecoder(LIMIT)
    decoder.receive_data(b"HTTP/1.1 400 Bad Request\r\n")
    for _ in range(2):
        with pytest.raises(DecodeError):
            decoder.next_frame()
        decoder.receive_data(wire(b"hello"))


@given(st.binary(max_size=40))
def test_garbage_is_decoded_or_refused(garbage):
    """Any bytes are frames, the beginning of one, or a DecodeError."""
    try:
        frames = frames_of(garbage)
    except DecodeError:
        return
    assert garbage.startswith(wire(*frames))


@pytest.mark.parametrize("rest", [b"", b"more"])
def test_frames_are_read_only_and_stay_valid(rest):
    """A frame is read-only, and does not change when more bytes arrive."""
    decoder = FrameDecoder(LIMIT)
    decoder.receive_data(bytearray(wire(b"hello") + rest))
    frame = decoder.next_frame()
    decoder.receive_data(wire(b"other"))
    assert frame.readonly
    assert b"hello" == frame


def received_in_place(stream: bytes, sizes: list[int]) -> list[bytes]:
    """Receive a stream in pieces of these sizes, in place where there is room."""
    decoder = FrameDecoder(len(stream))
    frames = []
    position = 0
    ends = [*accumulate(sizes), len(stream)]
    for end in ends:
        while position < min(end, len(stream)):
            room = decoder.room()
            piece = stream[position : min(end, position + len(room) if room else end)]
            if room is None:
                decoder.receive_data(piece)
            else:
                with room:
                    room[: len(piece)] = piece
                decoder.received(len(piece))
            position += len(piece)
            while (frame := decoder.next_frame()) is not None:
                frames.append(bytes(frame))
    return frames


@given(
    st.lists(
        st.sampled_from([0, 5, LEAST_ROOM - 1, LEAST_ROOM, 3 * MOST_ROOM_IN_ADVANCE]), max_size=4
    ),
    st.lists(st.integers(1, 2 * MOST_ROOM_IN_ADVANCE), max_size=6),
)
def test_frames_received_in_place_are_the_same(lengths, sizes):
    """Frames are the same whether their bytes are appended or received in place."""
    messages = [bytes([number + 1]) * length for number, length in enumerate(lengths)]
    assert messages == received_in_place(wire(*messages), sizes)


def test_a_small_frame_has_no_room():
    """Bytes of a small frame, and the first bytes of any, are appended."""
    decoder = FrameDecoder(LIMIT)
    assert decoder.room() is None
    decoder.receive_data(wire(bytes(LIMIT))[:10])
    assert decoder.room() is None


def test_room_for_a_large_frame_is_bounded_by_what_has_arrived():
    """The size that a peer claims takes little memory before the bytes arrive."""
    decoder = FrameDecoder(1 << 27)
    decoder.receive_data((1 << 27).to_bytes(4, "big"))
    rooms = []
    for _ in range(3):
        with decoder.room() as room:
            rooms.append(len(room))
        decoder.received(rooms[-1])
    first = MOST_ROOM_IN_ADVANCE
    assert [first, first + 4, 2 * (first + 4)] == rooms


def test_room_ends_with_the_frame():
    """Nothing of the next frame is received in place, so that a frame is passed on uncopied."""
    decoder = FrameDecoder(1 << 20)
    decoder.receive_data((1 << 17).to_bytes(4, "big") + b"12345")
    with decoder.room() as room:
        assert (1 << 17) - 5 == len(room)
    decoder.received(1 << 16)
    with decoder.room() as room:
        assert (1 << 16) - 5 == len(room)
    decoder.received((1 << 16) - 5)
    assert b"12345" == decoder.next_frame()[:5]
    assert decoder.room() is None


def test_no_room_for_an_invalid_size():
    """A size above the limit is refused before memory is provided for it."""
    decoder = FrameDecoder(LIMIT)
    decoder.receive_data((1 << 27).to_bytes(4, "big"))
    with pytest.raises(DecodeError, match="the limit is 1000"):
        decoder.room()


def receive_large(decoder, byte, size=1 << 20):
    """Receive a frame that consists of one byte, in place; return it."""
    decoder.receive_data(struct.pack(">i", size))
    frame = None
    while frame is None:
        with decoder.room() as room:
            room[:] = byte * len(room)
            received = len(room)
        decoder.received(received)
        frame = decoder.next_frame()
    return frame


def address(frame):
    """Return where a frame is in memory."""
    return np.frombuffer(frame, np.uint8).ctypes.data


@pytest.mark.parametrize("size", [1 << 20, 8 << 20])
def test_the_memory_of_a_frame_is_used_again_when_nothing_refers_to_it(size):
    """While a slice of a frame exists, its bytes remain; then the next large frame takes them."""
    decoder = FrameDecoder(1 << 30)
    first = receive_large(decoder, b"a", size)
    where = address(first)
    rest = first[-3:]
    del first
    second = receive_large(decoder, b"b", size)

    assert b"aaa" == bytes(rest)
    assert where != address(second)
    del rest
    assert where == address(receive_large(decoder, b"c", size))
    assert {ord("b")} == set(second)


def test_the_memory_of_very_large_frames_is_not_kept():
    """A connection holds no memory of a frame above 16 MiB when the frame is gone."""
    decoder = FrameDecoder(1 << 30)
    tracemalloc.start()
    assert MOST_SPARE_BYTES + 1 == len(receive_large(decoder, b"a", MOST_SPARE_BYTES + 1))
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held < 100_000
