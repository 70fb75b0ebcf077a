"""The embedded Schema Registry and a real one get the same questions, and answer alike.

`golden/apicurio.txt` has the answers of Apicurio 2.6.13. Run this module to record them again.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from spark_kafka_sink.devbroker.registry.rest_api import RestApi
from tests.support.devbroker.apicurio import PATH, ApicurioUnavailableError, running_apicurio
from tests.support.devbroker.registry_calls import ask, call
from tests.support.devbroker.registry_transcript import transcript
from tests.support.kafka.kafka_unavailable import skip_or_fail

GOLDEN = Path(__file__).with_name("golden") / "apicurio.txt"
#: The requests to which Apicurio answers differently than Confluent's registry, and so than ours.
DIFFERENCES = {
    "GET /config": "without a setting it checks nothing; Confluent's default is BACKWARD",
    "GET /config/orders": "it has the global level; Confluent's says that there is no own level",
    "GET /mode": "it has no modes",
    "GET /subjects/orders/versions/0": "it looks for the version; Confluent's refuses the number",
    "GET /subjects/orders/versions/first": "it looks for the version; Confluent's refuses the word",
    "PUT /config/orders": "an unknown level is malformed JSON to it",
    "POST /subjects/orders/versions": "an incompatible schema has the code 409, as before 8.0",
    "GET /subjects/customer/versions/1/referencedby": "it returns ids of another kind",
    "DELETE /subjects/orders/versions/1?permanent=true": "40407 has the status 409",
    "DELETE /subjects/orders/versions/1": "40406 has the status 409",
    "DELETE /subjects/returns?permanent=true": "40405 has the status 409",
    "POST /subjects/returns/versions": "blanks make another schema, and none is an error (500)",
    "GET /nothing": "an unknown path has no error code",
}


def apicurio():
    """Return the answers of a real registry."""
    with running_apicurio() as url:
        return transcript(lambda line, body: call(url, line.replace(" ", f" {PATH}", 1), body))


def test_the_embedded_registry_answers_as_a_real_one():
    """Each answer is that of a real registry, except where that differs from Confluent's."""
    api = RestApi()
    ours = transcript(lambda line, body: ask(api, line, body))
    real = GOLDEN.read_text().splitlines()
    pairs = zip(ours, real, strict=True)
    different = [(one, other) for one, other in pairs if one != other]
    unexplained = [pair for pair in different if pair[0].partition(": ")[0] not in DIFFERENCES]
    assert [] == unexplained
    assert DIFFERENCES.keys() == {one.partition(": ")[0] for one, _ in different}


@pytest.mark.slow
@pytest.mark.soak
def test_the_real_registry_answers_as_it_did():
    """The recorded answers are those of the real registry."""
    try:
        real = apicurio()
    except ApicurioUnavailableError as reason:
        skip_or_fail(reason, os.environ)
    assert GOLDEN.read_text().splitlines() == real


if __name__ == "__main__":
    GOLDEN.write_text("".join(f"{line}\n" for line in apicurio()))
