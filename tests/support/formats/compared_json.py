"""The compiled decoder of JSON, compared with the interpreter, its oracle."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from spark_kafka_sink.formats.json.decoder import Decoder
from spark_kafka_sink.formats.json.interpreter import Interpreter, MalformedError
from spark_kafka_sink.formats.json.plan import make_plan
from tests.support.formats.compared_avro import decoded
from tests.support.formats.json_cases import damage, make_text, make_type

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spark_kafka_sink.formats.json.plan import Plan


def compare_case(seed: int, damaged: int = 8) -> None:
    """Compare the decoders for a random type, payloads, and so many damaged payloads."""
    rng = random.Random(seed)
    kind = make_type(rng)
    plan = make_plan(kind)
    texts = [make_text(rng, kind).encode() for _ in range(4)]
    payloads = [*texts, None]
    payloads += [damage(rng, rng.choice(texts)) for _ in range(damaged)]
    rng.shuffle(payloads)
    compare_decoders(plan, payloads, rng.choice((70, 200, 1000, 1 << 20)))


def compare_decoders(plan: Plan, payloads: Sequence[bytes | None], few_bytes: int) -> None:
    """Compare rows and problems, also in outputs of few bytes."""
    interpreter = Interpreter(plan)
    expected, problems = [], {}
    for row, payload in enumerate(payloads):
        value = None
        try:
            value = None if payload is None else interpreter.read(payload)
        except MalformedError as error:
            problems[row] = str(error)
        expected.append(value)
    rows, found = decoded(plan, Decoder(plan), payloads)
    assert problems == found
    # NaN is not equal to itself.
    assert repr(expected) == repr(rows)
    few = Decoder(plan, few_bytes)
    rows, found = decoded(plan, few, payloads)
    for row in found:
        # A malformed payload may become too large before it is found to be malformed.
        if found[row] != problems.get(row):
            assert f"it becomes more than {few_bytes} bytes" == found[row]
            expected[row] = None
    assert repr(expected) == repr(rows)
    assert {} == {row: problem for row, problem in problems.items() if row not in found}
