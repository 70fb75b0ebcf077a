"""Each example does what it promises, against the embedded broker, and ends by itself.

Examples that start Spark are tested in `tests/spark/test_demo.py`.
"""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from spark_kafka_sink.devbroker import DevBroker
from spark_kafka_sink.model import TopicPartition

EXAMPLES = Path(__file__).parents[2] / "examples"
#: Modules that are not examples, and examples that are tested elsewhere.
NOT_HERE = {
    "cluster.py",
    "demo.py",
    # It serves until Ctrl-C; test_fastapi_service.py has its requests.
    "fastapi_service.py",
    # Its functions, in tests/spark/test_exactly_once.py.
    "route_bad_payloads.py",
    "stream_exactly_once.py",
    "stream_metrics.py",
    "typed_values.py",
}

#: Lines or parts of lines that each example prints.
EXPECTED = {
    "consume_from_asyncio.py": [
        "300 of 300 jobs were done by 3 workers\n",
        "300 records were read, and 300 are there\n",
    ],
    "consume_transform_produce.py": [
        "the first run has stopped in the middle: True\n",
        "1000 invoices of 1000 orders\n",
    ],
    "custom_partitioner.py": [
        "vip-1 went to partition 0\n",
        "customer-2 went to partition 2\n",
        "vip-4 went to partition 0\n",
        # The bytes of a, b, c and d are 97 to 100, so they go to 1, 2, 0 and 1.
        "orders-0: 1000 rows of the table\norders-1: 2000 rows of the table\n",
    ],
    "metrics_to_log.py": [
        "producer-topic-metrics{client-id=clicks-example,topic=clicks}: byte-rate=",
        "records; record-send-total is ",
        "request-latency-avg: ",
    ],
    "plug_ins.py": [
        "the value serializer is used by orders-example\n",
        # The byte of a is 97, so it goes to 1 of 0 and 1.
        "partition 1 has a record with schema b'orders-v2'\n",
        "partition 2 has a record with schema b'orders-v2'\nthe serializer is closed\n",
    ],
    "read_arrow.py": [
        "DuckDB: [('sensor-0', 26), ('sensor-1', 26), ('sensor-2', 26)]\n",
        "Polars: 3600 readings of the second hour, in [0, 1]\n",
    ],
    "send_arrow_table.py": ["measurements-3: ", "200000 of 200000 rows\n"],
    "send_from_asyncio.py": [
        "200 visits are in partitions [0, 1, 2]\n",
        "10000 more were sent without waiting, 0 of them failed\n",
        "the first order is committed\nthe second order took too long: its transaction is abor",
        "the third order is committed\nrefused: topic 'visits': the record takes ",
    ],
    "send_records.py": [
        "offset 0\n",
        "10000 records are in partitions [0, 1, 2]\n0 of them failed\n",
        "refused: topic 'events': the record takes 1200",
    ],
    "transactions.py": [
        "the second transaction is aborted: 'not an amount' was refused\n",
        "committed: ['pay 10', 'pay 20', 'pay 40']\n",
        "the first producer was fenced: it wrote nothing",
    ],
}
#: The same of examples that need no process of their own.
HERE = {
    "avro_records.py": [
        "values by schema 1 (subject orders-value, version 1)\n",
        "1000 orders: struct<id: int64, quantity: int64>\n",
        "{'order': 0, 'amount': Decimal('9.95'), 'paid': False}\n",
        "{'order': 2, 'amount': Decimal('29.85'), 'paid': False}\n",
    ],
}


def run_example(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run an example to its end."""
    return subprocess.run(  # noqa: S603 - our own script
        [sys.executable, str(EXAMPLES / name), *arguments],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


@pytest.mark.slow  # eight processes, of a second each
@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_an_example_prints_its_result(name):
    """The example ends with exit code 0 and prints the lines that show its feature."""
    done = run_example(name)

    assert 0 == done.returncode, done.stderr
    assert [] == [line for line in EXPECTED[name] if line not in done.stdout], done.stdout


@pytest.mark.parametrize("name", sorted(HERE))
def test_an_example_prints_its_result_here(name, capsys):
    """The example ends, and prints the lines that show its feature."""
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    printed = capsys.readouterr().out
    assert [] == [line for line in HERE[name] if line not in printed], printed


def test_every_example_has_a_test():
    """Every example is tested here or elsewhere."""
    found = {path.name for path in EXAMPLES.glob("*.py")}

    assert NOT_HERE | set(EXPECTED) | set(HERE) == found


def test_an_example_writes_to_the_given_kafka():
    """With --bootstrap-servers an example writes to that cluster and starts no broker."""
    with DevBroker(topics={"measurements": 2}) as broker:
        done = run_example("send_arrow_table.py", "--bootstrap-servers", broker.bootstrap_servers)
        ends = [
            broker.call(
                lambda it, number=number: (
                    it.cluster.partition(TopicPartition("measurements", number)).log.log_end_offset
                )
            )
            for number in range(2)
        ]

    assert 0 == done.returncode, done.stderr
    assert 200_000 == sum(ends)
