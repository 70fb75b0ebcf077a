"""The control socket of a `pykafka-devbroker` process: commands for single brokers.

    <runtime directory>/<port>.sock

The runtime directory is `pykafka-devbroker` in $XDG_RUNTIME_DIR or, without that variable,
`pykafka-devbroker-<user id>` in the directory for temporary files. Only the user that runs the
process can change it and connect to the socket, so no password is needed. The port is that of the
first broker's first listener, which the process prints.

A client sends one line, such as `stop 2`, and gets `ok` or `error`, a line end, and a text until
the end of the connection. A process that was killed leaves its socket behind; the next one on the
same port replaces it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from spark_kafka_sink.errors import KafkaError, KafkaTimeoutError
from spark_kafka_sink.record.private_directory import make_private_directory

if TYPE_CHECKING:
    from collections.abc import Mapping

    from spark_kafka_sink.devbroker.net.server import ClusterServer

logger = logging.getLogger(__name__)

#: The commands for one broker, and what they do.
NODE_COMMANDS: Final = {
    "stop": "stop a broker in order: others lead before its connections close",
    "kill": "end a broker without notice, as SIGKILL does",
    "pause": "make a broker do nothing, as SIGSTOP does",
    "resume": "continue a paused broker",
    "start": "start a stopped or killed broker on its previous port",
    "wipe": "delete the logs of a stopped or killed broker",
}
STATUS: Final = "status"
_SUFFIX: Final = ".sock"
_MAX_LINE_BYTES: Final = 200
#: How long a client may take to send its command.
_LINE_TIMEOUT_SECONDS: Final = 5.0
_ACCEPT_RETRY_SECONDS: Final = 1.0
#: How long a client waits for the outcome of its command.
_ANSWER_TIMEOUT_SECONDS: Final = 60.0
#: Only the user can read and write a socket.
_UMASK: Final = 0o177


def runtime_directory(environ: Mapping[str, str]) -> Path:
    """Return the directory of the sockets, which may not exist yet."""
    directory = environ.get("XDG_RUNTIME_DIR")
    if directory:
        return Path(directory, "pykafka-devbroker")
    return Path(tempfile.gettempdir(), f"pykafka-devbroker-{os.geteuid()}")


class ControlServer:
    """The server's side: takes commands on a socket, and runs them on the event loop."""

    def __init__(self, cluster: ClusterServer, directory: Path) -> None:
        self._cluster = cluster
        self._directory = directory
        self._path: Path | None = None
        self._listening: socket.socket | None = None
        self._serving: set[asyncio.Task[None]] = set()

    def open(self) -> None:
        """Listen once the brokers have their ports, on the running event loop.

        Raises OSError if the directory is not private, or another process uses the socket.
        """
        listeners = next(iter(self._cluster.listeners.values()))
        path = make_private_directory(self._directory) / f"{listeners[0].port}{_SUFFIX}"
        if _is_used(path):
            raise OSError(f"{path} is used by another process")
        path.unlink(missing_ok=True)
        listening = socket.socket(socket.AF_UNIX)
        umask = os.umask(_UMASK)
        try:
            listening.bind(str(path))
        except BaseException:
            listening.close()
            raise
        finally:
            os.umask(umask)
        self._path = path
        self._listening = listening
        listening.setblocking(False)
        listening.listen()
        self._listen()

    async def close(self) -> None:
        """Remove the socket, and end the connections."""
        listening, self._listening = self._listening, None
        if listening is not None:
            asyncio.get_running_loop().remove_reader(listening)
            listening.close()
        if self._path is not None:
            self._path.unlink(missing_ok=True)
        await asyncio.sleep(0)  # A task that has not begun would leave its connection open.
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)

    def _listen(self) -> None:
        if self._listening is not None:
            asyncio.get_running_loop().add_reader(self._listening, self._accept, self._listening)

    def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        try:
            client, _ = listening.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return  # The client has left already.
        except OSError:
            logger.exception("cannot accept a command; retrying soon")
            loop.remove_reader(listening)
            loop.call_later(_ACCEPT_RETRY_SECONDS, self._listen)
            return
        client.setblocking(False)
        task = loop.create_task(self._serve(client))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def _serve(self, client: socket.socket) -> None:
        with client, suppress(ConnectionError):  # The client may have left.
            answer = await self._answer(client)
            await asyncio.get_running_loop().sock_sendall(client, answer.encode())

    async def _answer(self, client: socket.socket) -> str:
        try:
            words = (await asyncio.wait_for(_read_line(client), _LINE_TIMEOUT_SECONDS)).split()
        except TimeoutError:
            return "error\nno command arrived in time\n"
        except ValueError:
            return f"error\na command is one line of at most {_MAX_LINE_BYTES} ASCII characters\n"
        try:
            return f"ok\n{await self._run(words)}\n"
        except (KafkaError, OSError) as error:
            return f"error\n{error}\n"
        except Exception:
            logger.exception("the command %r failed", words)
            return "error\nthe command failed: the log of the process says why\n"

    async def _run(self, words: list[str]) -> str:
        """Run a command; return what to tell the client. Raises KafkaError, OSError."""
        match words:
            case [command] if command == STATUS:
                return self._status()
            case [command, node] if command in NODE_COMMANDS:
                if not node.isdecimal():
                    raise KafkaError(f"{node!r} is not the id of a broker")
                return await self._change(command, int(node))
        known = ", ".join(f"{command} NODE" for command in NODE_COMMANDS)
        raise KafkaError(f"{' '.join(words)!r} is not a command: those are {known}, {STATUS}")

    async def _change(self, command: str, node_id: int) -> str:
        cluster = self._cluster
        match command:
            case "stop":
                if not await cluster.stop_broker(node_id):
                    return f"broker {node_id} is stopped; the controller has not approved it"
            case "kill":
                await cluster.kill_broker(node_id)
            case "pause":
                cluster.pause_broker(node_id)
            case "resume":
                await cluster.resume_broker(node_id)
            case "start":
                cluster.start_broker(node_id)
            case "wipe":
                cluster.wipe_broker(node_id)
        return f"broker {node_id} is {cluster.states[node_id]}"

    def _status(self) -> str:
        listener = next(iter(self._cluster.listeners.values()))[0].name
        addresses = self._cluster.addresses(listener)
        return "\n".join(
            f"broker {node_id} at {addresses[node_id]} is {state}"
            for node_id, state in self._cluster.states.items()
        )


async def _read_line(client: socket.socket) -> str:
    """Return the line that a client sends. Raises ValueError if it is not one, or too long."""
    received = b""
    while b"\n" not in received and len(received) <= _MAX_LINE_BYTES:
        part = await asyncio.get_running_loop().sock_recv(client, _MAX_LINE_BYTES)
        if not part:
            break
        received += part
    line, end, _ = received.partition(b"\n")
    if not end or len(line) > _MAX_LINE_BYTES:
        raise ValueError("not a line")
    return line.decode("ascii")


# The client's side.


def find_socket(directory: Path, port: int | None) -> Path:
    """Return the socket of the process that listens on a port, or of the only one.

    Raises KafkaError if there is none, or if `port` is None and there are several, and OSError if
    another user could have made the directory.
    """
    sockets = {}
    if directory.exists():
        directory = make_private_directory(directory)
        sockets = {
            int(path.stem): path
            for path in directory.glob(f"*{_SUFFIX}")
            if path.stem.isdecimal() and _is_used(path)
        }
    if not sockets:
        raise KafkaError("no pykafka-devbroker of this user is running")
    ports = ", ".join(map(str, sorted(sockets)))
    if port is None:
        if len(sockets) > 1:
            raise KafkaError(f"several are running: choose one with --port, of {ports}")
        return next(iter(sockets.values()))
    if port not in sockets:
        raise KafkaError(f"none has its first listener on port {port}: those that run have {ports}")
    return sockets[port]


def send_command(path: Path, *words: str) -> str:
    """Send a command to a process; return its answer.

    Raises KafkaError if the process refuses it, or does not answer, and OSError.
    """
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(_ANSWER_TIMEOUT_SECONDS)
        try:
            client.connect(str(path))
            client.sendall(f"{' '.join(words)}\n".encode())
            answer = b"".join(iter(lambda: client.recv(4096), b"")).decode()
        except TimeoutError:
            raise KafkaTimeoutError("the process does not answer") from None
    outcome, _, text = answer.partition("\n")
    if outcome != "ok":
        raise KafkaError(text.strip() or "the process has ended")
    return text.strip()


def _is_used(path: Path) -> bool:
    """Return whether a process listens on a socket: one that was killed leaves it behind."""
    with socket.socket(socket.AF_UNIX) as client:
        try:
            client.connect(str(path))
        except (FileNotFoundError, ConnectionRefusedError):
            return False
    return True
