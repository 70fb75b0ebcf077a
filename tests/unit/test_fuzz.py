"""A few seconds of the inputs of `make fuzz`, and the findings of earlier runs."""

from __future__ import annotations

import contextlib
import logging
import random
import struct

import pytest

from spark_kafka_sink.devbroker import DevBroker
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages.api_versions import ApiVersionsRequest
from tests.fuzz import FINDINGS
from tests.support.fuzzing.fuzz import TARGETS, BrokerTarget, fuzz, keep, read_kept, try_input
from tests.support.network.raw_client import RawClient
from tests.support.security.secure_listeners import listener

KEPT = sorted(FINDINGS.glob("*.hex"))


@pytest.mark.parametrize(
    "inputs", [400, pytest.param(2000, marks=[pytest.mark.slow, pytest.mark.soak])]
)
def test_random_and_mutated_bytes_cause_no_findings(inputs):
    """Thousands of requests, responses and records are accepted or refused, without a finding."""
    report = fuzz(seed=20261121, seconds=300.0, most_inputs=inputs * len(TARGETS))

    assert [] == [str(finding) for finding in report.findings]
    assert dict.fromkeys(TARGETS, inputs) == report.inputs


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.stem)
def test_earlier_findings_are_fixed(path):
    """Inputs that once were findings are none any more."""
    assert None is try_input(*read_kept(path))


class Careless:
    """A target that fails."""

    name = "broker"

    def take(self, data):
        """Raise an error or log one."""
        if data == b"raise":
            raise IndexError("out of range")
        logging.getLogger("spark_kafka_sink.devbroker").error("cannot handle it")


@pytest.mark.parametrize(("data", "reason"), [(b"raise", "IndexError"), (b"log", "cannot handle")])
def test_findings_are_detected_and_stored(tmp_path, data, reason):
    """An exception and a logged error are findings, and can be read back from their files."""
    finding = try_input(Careless(), data)
    assert reason in finding.reason
    target, kept = read_kept(keep(finding, tmp_path))
    assert (BrokerTarget, data) == (type(target), kept)


def test_a_seed_always_produces_the_same_bytes():
    """A seed always produces the same inputs."""
    made = [[make().make(random.Random(5)) for make in TARGETS.values()] for _ in range(2)]
    assert made[0] == made[1]


@pytest.mark.parametrize("protocol", ["PLAINTEXT", "SASL_PLAINTEXT"])
def test_hostile_streams_end_only_their_own_connections(protocol, caplog):
    """Frames of any content and size cause no logged error, and the broker serves other clients."""
    random_ = random.Random(7)
    target = TARGETS["broker"]() if protocol == "PLAINTEXT" else TARGETS["sasl"]()
    with DevBroker(topics={"t": 1}, listeners=[listener(protocol)]) as broker:
        for _ in range(150):
            with RawClient(broker.port) as client, contextlib.suppress(ConnectionError):
                for _ in range(4):
                    frame = target.make(random_)
                    size = len(frame) if random_.random() < 0.8 else random_.randrange(-9, 2**31)
                    client.send_bytes(struct.pack(">i", size) + frame)
        with RawClient(broker.port) as client:
            asked = ApiVersionsRequest(client_software_name="x", client_software_version="1")
            assert ErrorCode.NONE == client.ask(asked, 4).error_code

    assert [] == [it.getMessage() for it in caplog.records if it.levelno >= logging.ERROR]
