"""The rows of a task, sent in record batches over one blocking socket, and nothing more.

It uses our compiled kernel, codecs and record batch header, a block of memory for each partition,
which is reused for every batch, and several requests in flight. It leaves out what makes a sink
dependable: idempotence, bounded memory, retries, a limit on the size of compressed batches, a
report of the acknowledgements, and metrics. What our sink costs above this is the price of those.

The first error ends the write. Each row needs a key, since nothing here chooses partitions for rows
without one.
"""

from __future__ import annotations

import socket
import struct
import time
from typing import TYPE_CHECKING, Final

import numpy as np

from spark_kafka_sink.model import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.error_codes import ErrorCode, error_name
from spark_kafka_sink.protocol.frame import FrameDecoder
from spark_kafka_sink.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from spark_kafka_sink.protocol.registry import RequestHeader, decode_response, encode_request
from spark_kafka_sink.record.arrow.record_columns import record_columns
from spark_kafka_sink.record.compression import CompressionType, Compressor
from spark_kafka_sink.record.kernel.kernel import (
    SLOT_DTYPE,
    STICKY_DTYPE,
    AppendStatus,
    SlotStatus,
    append_rows,
    assign_slots,
)
from spark_kafka_sink.record.record_batch import RECORD_BATCH_OVERHEAD, write_header

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pyarrow as pa

    from spark_kafka_sink.protocol.primitives import Buffer

#: The size of a partition's block, by codec: rows of the benchmarks then compress to about 1 MB.
BLOCK_BYTES: Final = {"none": 1_000_000, "lz4": 3_000_000, "zstd": 3_700_000}
IN_FLIGHT: Final = 5
TIMEOUT_SECONDS: Final = 60
_PRODUCE_VERSION: Final = 9
_ALL_REPLICAS: Final = -1
_MOST_RESPONSE_BYTES: Final = 1 << 20


def write_rows(
    batches: Iterable[pa.RecordBatch], *, server: str, topic: str, partitions: int, codec: str
) -> int:
    """Send all rows, wait for the acknowledgements, and return the number of rows.

    Raises RuntimeError for a row that cannot be sent, and for a batch that the broker refuses;
    OSError if the connection is lost, or if the broker stalls for longer than the timeout.
    """
    host, _, port = server.rpartition(":")
    with socket.create_connection((host, int(port)), TIMEOUT_SECONDS) as connected:
        task = _Task(_Connection(connected), topic, partitions, codec)
        rows = sum(map(task.append, batches))
        task.finish()
    return rows


class _Task:
    """The open batches of a task's rows, and the connection to which full ones go."""

    def __init__(self, connection: _Connection, topic: str, partitions: int, codec: str) -> None:
        self._connection = connection
        self._topic = topic
        self._open = _OpenBatches(partitions, codec)
        self._first_slots = np.zeros(1, np.int32)
        self._partition_counts = np.full(1, partitions, np.int32)
        self._sticky = np.zeros(1, STICKY_DTYPE)

    def append(self, batch: pa.RecordBatch) -> int:
        """Append all rows of a batch, and send full record batches; return the number of rows."""
        columns = record_columns(batch, topic=self._topic)
        assigned = assign_slots(columns, self._first_slots, self._partition_counts)
        if assigned.status != SlotStatus.ALL_ASSIGNED:
            raise RuntimeError(f"row {assigned.row} of a batch: {assigned.status.name}")
        now_ms = int(time.time() * 1000)
        row = 0
        while True:
            row, status, partition, _ = append_rows(
                columns,
                assigned.row_slots,
                row,
                self._open.slots,
                self._sticky,
                now_ms,
                self._open.max_record_bytes,
            )
            if status == AppendStatus.ALL_APPENDED:
                return batch.num_rows
            if status != AppendStatus.BATCH_FULL:
                raise RuntimeError(f"row {row} of a batch: {status.name}")
            self._send(partition)

    def finish(self) -> None:
        """Send the last batch of each partition, and wait until everything is acknowledged."""
        for partition in np.flatnonzero(self._open.slots["record_count"]):
            self._send(int(partition))
        self._connection.wait()

    def _send(self, partition: int) -> None:
        data = PartitionProduceData(index=partition, records=self._open.close(partition))
        topic = TopicProduceData(name=self._topic, partition_data=(data,))
        self._connection.send(
            ProduceRequest(
                acks=_ALL_REPLICAS, timeout_ms=TIMEOUT_SECONDS * 1000, topic_data=(topic,)
            )
        )


class _OpenBatches:
    """The open batch of each partition, in a block that is reused for the next one."""

    def __init__(self, partitions: int, codec: str) -> None:
        self._compressor = Compressor(CompressionType.from_name(codec))
        self._blocks = [np.empty(BLOCK_BYTES[codec], np.uint8) for _ in range(partitions)]
        self.max_record_bytes = BLOCK_BYTES[codec] - RECORD_BATCH_OVERHEAD
        self.slots = np.zeros(partitions, SLOT_DTYPE)
        self.slots["address"] = [block.ctypes.data for block in self._blocks]
        self.slots["position"] = RECORD_BATCH_OVERHEAD
        self.slots["limit"] = BLOCK_BYTES[codec]

    def close(self, partition: int) -> list[Buffer]:
        """Return a batch as it is sent, valid until rows are appended to the next one."""
        slot = self.slots[partition]
        block = self._blocks[partition].data
        payload = self._compressor.compress(block[RECORD_BATCH_OVERHEAD : int(slot["position"])])
        header = bytearray(RECORD_BATCH_OVERHEAD)
        write_header(
            header,
            payload,
            compression=self._compressor.compression,
            base_timestamp=int(slot["base_timestamp"]),
            max_timestamp=int(slot["max_timestamp"]),
            producer_id=NO_PRODUCER_ID,
            producer_epoch=NO_PRODUCER_EPOCH,
            base_sequence=NO_SEQUENCE,
            record_count=int(slot["record_count"]),
        )
        slot["position"] = RECORD_BATCH_OVERHEAD
        slot["record_count"] = 0
        slot["max_record_bytes"] = 0
        return [memoryview(header), payload]


class _Connection:
    """A connected socket with Produce requests in flight."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._frames = FrameDecoder(_MOST_RESPONSE_BYTES)
        #: The correlation ids of the last request, and of the last response.
        self._sent = 0
        self._answered = 0
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # With Python's own timeouts, a batch takes several system calls, each preceded by a poll.
        connected.settimeout(None)
        seconds = struct.pack("ll", TIMEOUT_SECONDS, 0)
        for option in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
            connected.setsockopt(socket.SOL_SOCKET, option, seconds)

    def send(self, request: ProduceRequest) -> None:
        """Send a request; wait for the oldest response first if enough requests are in flight."""
        if self._sent - self._answered == IN_FLIGHT:
            self._receive_response()
        self._sent += 1
        header = RequestHeader(
            request_api_key=request.api_key,
            request_api_version=_PRODUCE_VERSION,
            correlation_id=self._sent,
            client_id="lean",
        )
        self._send_all([memoryview(part).cast("B") for part in encode_request(header, request)])

    def wait(self) -> None:
        """Wait until all requests are answered."""
        while self._answered < self._sent:
            self._receive_response()

    def _send_all(self, parts: list[memoryview]) -> None:
        while parts:
            sent = self._socket.sendmsg(parts)
            while parts and sent >= len(parts[0]):
                sent -= len(parts.pop(0))
            if sent:
                parts[0] = parts[0][sent:]

    def _receive_response(self) -> None:
        """Receive the next response; raises RuntimeError if it has an error."""
        answered, response = decode_response(
            ApiKey.PRODUCE, _PRODUCE_VERSION, self._receive_frame()
        )
        self._answered += 1
        if answered != self._answered or not isinstance(response, ProduceResponse):
            raise RuntimeError(f"expected the response to request {self._answered}: {response}")
        for topic in response.responses:
            for partition in topic.partition_responses:
                if partition.error_code != ErrorCode.NONE:
                    raise RuntimeError(
                        f"{topic.name}-{partition.index}: the broker refused a batch with "
                        f"{error_name(partition.error_code)}"
                    )

    def _receive_frame(self) -> memoryview:
        while (frame := self._frames.next_frame()) is None:
            received = self._socket.recv(65_536)
            if not received:
                raise ConnectionError("the broker closed the connection")
            self._frames.receive_data(received)
        return frame
