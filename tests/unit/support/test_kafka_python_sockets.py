"""No socket of kafka-python outlives its client in the tests."""

from __future__ import annotations

import socket
import warnings

import pytest

with warnings.catch_warnings():
    # kafka-python reads its schemas with functions that Python 3.11 has deprecated.
    warnings.filterwarnings("ignore", "(read|open)_text is deprecated", DeprecationWarning)
    from kafka.net.inet import KafkaNetSocket, create_connection
    from kafka.net.selector import NetworkSelector
    from kafka.net.transport import KafkaTCPTransport

    from tests.support.network.kafka_python_sockets import sockets_closed


@pytest.fixture
def port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.fixture
def created(monkeypatch):
    """Return a list of the sockets that kafka-python creates."""
    found = []
    create = KafkaNetSocket.socket
    monkeypatch.setattr(
        KafkaNetSocket, "socket", lambda *args: found.append(create(*args)) or found[-1]
    )
    yield found
    for each in found:
        each.close()


def end_while_connecting(port):
    """End a loop of kafka-python in which a connection is being opened."""
    net = NetworkSelector()
    net.call_soon(lambda: create_connection(net, "127.0.0.1", port))
    net._poll_once(0)
    net.close()


def end_while_sending(port):
    """End a loop of kafka-python whose connection has bytes to send."""
    net = NetworkSelector()
    sock = KafkaNetSocket().socket(socket.AF_INET, socket.SOCK_STREAM)
    sock.connect(("127.0.0.1", port))
    transport = KafkaTCPTransport(net, sock)
    transport.write(b"a request")
    transport.close()
    net.close()


@pytest.mark.parametrize("end", [end_while_connecting, end_while_sending])
def test_a_socket_that_kafka_python_leaves_open_is_closed(end, port, created):
    """A socket that is open although its client has been closed is closed after the block."""
    end(port)
    with sockets_closed():
        end(port)

    assert [True, False] == [each.fileno() >= 0 for each in created]
