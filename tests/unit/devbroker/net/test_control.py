"""The control socket of `pykafka-devbroker`, and the commands that use it."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import stat

import pytest

from spark_kafka_sink.devbroker.__main__ import main
from spark_kafka_sink.devbroker.base.broker_settings import BrokerSettings
from spark_kafka_sink.devbroker.brokers.clusters import cluster_of
from spark_kafka_sink.devbroker.net import control
from spark_kafka_sink.devbroker.net.control import (
    NODE_COMMANDS,
    ControlServer,
    find_socket,
    runtime_directory,
    send_command,
)
from spark_kafka_sink.devbroker.net.listener import Listener
from spark_kafka_sink.devbroker.net.server import ClusterServer
from spark_kafka_sink.errors import KafkaError
from spark_kafka_sink.record.private_directory import UnsafeDirectoryError
from tests.support.devbroker.broker_process import broker_process


@pytest.fixture
def directory(tmp_path):
    return tmp_path / "run"


@pytest.fixture
def with_brokers(directory):
    """Return a function that calls another one with a control socket while brokers run."""

    def run(scenario, brokers=3):
        async def serve():
            server = ClusterServer(cluster_of(BrokerSettings(), brokers))
            server.lay_out([Listener()])
            commands = ControlServer(server, directory)
            await server.start()
            try:
                commands.open()
                await asyncio.to_thread(scenario, find_socket(directory, None), server)
            finally:
                await commands.close()
                await server.close()

        asyncio.run(serve())

    return run


def sent(path, data):
    """Send bytes and the end of the stream; return the outcome and the text."""
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(120)
        client.connect(str(path))
        client.sendall(data)
        client.shutdown(socket.SHUT_WR)
        answer = b"".join(iter(lambda: client.recv(1_000), b"")).decode()
    outcome, _, text = answer.partition("\n")
    return outcome, text.strip()


def test_commands_change_what_a_broker_does(with_brokers):
    """Each command does what the method of the server does, and says the new state."""

    def scenario(path, server):
        answers = [
            send_command(path, command, "2")
            for command in ("pause", "resume", "stop", "start", "kill", "wipe")
        ]
        states = ("paused", "running", "stopped", "running", "stopped", "stopped")
        assert [f"broker 2 is {state}" for state in states] == answers
        assert {*NODE_COMMANDS} == {"pause", "resume", "stop", "start", "kill", "wipe"}
        addresses = server.addresses("PLAINTEXT")
        assert [
            f"broker 1 at {addresses[1]} is running",
            f"broker 2 at {addresses[2]} is stopped",
            f"broker 3 at {addresses[3]} is running",
        ] == send_command(path, "status").splitlines()

    with_brokers(scenario)


def test_a_stop_without_approval_says_so(with_brokers, caplog):
    """A broker that cannot reach the controller stops anyway, with a warning."""

    def scenario(path, server):
        server.cluster.cut(3, 1)
        server.cluster.cut(3, 2)
        assert "broker 3 is stopped; the controller has not approved it" == send_command(
            path, "stop", "3"
        )

    with_brokers(scenario)
    assert "broker 3 stops without the controller's approval" in caplog.text


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (b"stop 4\n", "broker 4 does not exist; the brokers are [1, 2, 3]"),
        (b"stop -1\n", "'-1' is not the id of a broker"),
        (b"stop two\n", "'two' is not the id of a broker"),
        (b"resume 1\n", "broker 1 is running, not paused"),
        (b"start 1\n", "broker 1 is already running"),
        (b"wipe 1\n", "broker 1 is running: stop or kill it first"),
        (b"stop\n", "'stop' is not a command: those are stop NODE"),
        (b"halt 1\n", "'halt 1' is not a command"),
        (b"status 1\n", "'status 1' is not a command"),
        (b"\n", "'' is not a command"),
        (b"stop 1", "a command is one line"),
        (b"", "a command is one line"),
        (b"stop \xb2\n", "a command is one line of at most 200 ASCII characters"),
        (b"stop " + 300 * b"1" + b"\n", "a command is one line"),
        (300 * b"1", "a command is one line"),
    ],
)
def test_bad_input_gets_an_error_and_changes_nothing(with_brokers, line, problem):
    """Whatever a client sends, it is told what is wrong, and all brokers go on."""

    def scenario(path, server):
        outcome, text = sent(path, line)
        assert ("error", True) == (outcome, problem in text)
        assert dict.fromkeys((1, 2, 3), "running") == server.states

    with_brokers(scenario)


def test_a_client_without_a_command_is_not_waited_for(with_brokers, monkeypatch):
    """It gets an error in time, and one that still waits does not keep the process from ending."""
    monkeypatch.setattr(control, "_LINE_TIMEOUT_SECONDS", 0.01)
    silent = socket.socket(socket.AF_UNIX)

    def scenario(path, _server):
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(120)
            client.connect(str(path))
            assert client.recv(100).startswith(b"error\nno command arrived in time")
        monkeypatch.setattr(control, "_LINE_TIMEOUT_SECONDS", 120)
        silent.connect(str(path))

    with silent:
        with_brokers(scenario)
        assert b"" == silent.recv(1)


def test_a_single_broker_is_stopped_and_started(with_brokers):
    """But it is not killed, because no other broker could take over."""

    def scenario(path, _server):
        assert "broker 1 is stopped" == send_command(path, "stop", "1")
        assert "broker 1 is running" == send_command(path, "start", "1")
        with pytest.raises(KafkaError, match="kill needs several brokers"):
            send_command(path, "kill", "1")

    with_brokers(scenario, brokers=1)


def test_only_the_user_can_connect(with_brokers, directory):
    """The directory and the socket are closed to others, whatever the umask is."""

    def scenario(path, _server):
        modes = [stat.S_IMODE(each.stat().st_mode) for each in (directory, path)]
        assert [0o700, 0o600] == modes

    before = os.umask(0)
    try:
        with_brokers(scenario)
    finally:
        os.umask(before)


def test_a_directory_of_others_is_not_used(with_brokers, directory):
    """Neither side trusts a directory that others can write to."""
    directory.mkdir()
    directory.chmod(0o777)
    with pytest.raises(UnsafeDirectoryError):
        find_socket(directory, None)
    with pytest.raises(UnsafeDirectoryError):
        with_brokers(lambda *_: None)


def listening(path):
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(path))
    server.listen()
    return server


def test_the_socket_is_that_of_the_port_or_the_only_one(directory):
    """Errors say which ports there are; sockets of killed processes do not count."""
    with pytest.raises(KafkaError, match="no pykafka-devbroker of this user is running"):
        find_socket(directory, None)
    directory.mkdir(mode=0o700)
    listening(directory / "9000.sock").close()
    with pytest.raises(KafkaError, match="no pykafka-devbroker of this user is running"):
        find_socket(directory, 9000)
    with listening(directory / "9092.sock"):
        assert directory / "9092.sock" == find_socket(directory, None)
        with pytest.raises(KafkaError, match="on port 9000: those that run have 9092"):
            find_socket(directory, 9000)
        with listening(directory / "9192.sock"):
            with pytest.raises(KafkaError, match="choose one with --port, of 9092, 9192"):
                find_socket(directory, None)
            assert directory / "9192.sock" == find_socket(directory, 9192)


def test_the_runtime_directory_is_that_of_the_user(tmp_path, monkeypatch):
    """It is in XDG_RUNTIME_DIR if there is one, or else has the user's id in its name."""
    assert tmp_path / "pykafka-devbroker" == runtime_directory({"XDG_RUNTIME_DIR": str(tmp_path)})
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert tmp_path / f"pykafka-devbroker-{os.geteuid()}" == runtime_directory({})


def test_a_process_is_controlled_from_another(tmp_path, monkeypatch, capsys):
    """The command finds it by its port, replaces the socket of a killed one, and leaves none."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    directory = tmp_path / "pykafka-devbroker"
    with broker_process("--brokers", "2", "--port", "0") as process:
        port = process.stdout.readline().split()[-1].partition(",")[0].rpartition(":")[2]
        assert 0 == main(["stop", "2", "--port", port])
        assert "broker 2 is stopped\n" == capsys.readouterr().out
        assert 1 == main(["start", "7"])
        assert "broker 7 does not exist; the brokers are [1, 2]\n" == capsys.readouterr().err
        process.kill()
        process.wait(120)
    assert [directory / f"{port}.sock"] == list(directory.iterdir())
    with broker_process("--port", port) as process:
        assert process.stdout.readline()
        assert 0 == main(["status"])
        assert f"broker 1 at 127.0.0.1:{port} is running\n" == capsys.readouterr().out
        process.send_signal(signal.SIGTERM)
        assert 0 == process.wait(120)
    assert [] == list(directory.iterdir())


def test_a_process_without_a_control_socket_serves_clients(tmp_path):
    """It says why there is none, because its directory is not private, and goes on."""
    (tmp_path / "pykafka-devbroker").mkdir()
    (tmp_path / "pykafka-devbroker").chmod(0o777)
    with broker_process("--port", "0", XDG_RUNTIME_DIR=str(tmp_path)) as process:
        assert process.stdout.readline().startswith("listening on ")
        process.send_signal(signal.SIGTERM)
        assert "there is no control socket: other users can write to" in process.stderr.read()


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["stop"], "stop needs the id of a broker"),
        (["status", "1"], "leave out 1"),
        (["stop", "two"], "invalid int value"),
    ],
)
def test_a_command_without_sense_is_refused(capsys, arguments, problem):
    """The command line says what is missing, without looking for a process."""
    with pytest.raises(SystemExit):
        main(arguments)
    assert problem in capsys.readouterr().err
