"""Consume-transform-produce: KafkaConsumer and KafkaProducer in transactions, killed at random."""

from __future__ import annotations

import json
import queue
import random
import subprocess
import sys
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, Producer
from confluent_kafka import TopicPartition as ConfluentPartition

from tests.support.consumer.transactional_copy import STEPS
from tests.support.kafka.real_kafka import wait_until

SEED = 447
NAMES = ("one", "two")
PARTITIONS = 4
#: Records of a transaction of the copy, at most.
MOST = 15
KILLS = 6
#: Seconds; both processes always have something to copy.
PAUSE = 0.2
#: Seconds; more than a busy machine needs.
PATIENCE = 120

pytestmark = [pytest.mark.slow]


class Source:
    """A topic to which numbered records are written, also some in aborted transactions."""

    def __init__(self, kafka, topic):
        """Write nothing; see `writing`."""
        self.topic = topic
        self.count = 0
        self._producer = Producer(
            {"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": f"fill-{topic}"}
        )
        self._is_done = threading.Event()

    @contextmanager
    def writing(self):
        """Write until the end of the block, and at least once."""
        with ThreadPoolExecutor(1) as threads:
            result = threads.submit(self._run)
            try:
                yield
            finally:
                self._is_done.set()
                result.result(PATIENCE)

    def _run(self):
        self._producer.init_transactions(PATIENCE)
        while True:
            self._write(["aborted"] * 20)
            self._producer.abort_transaction(PATIENCE)
            self._write([f"{number}" for number in range(self.count, self.count + 100)])
            self._producer.commit_transaction(PATIENCE)
            self.count += 100
            if self._is_done.wait(PAUSE):
                break

    def _write(self, values):
        self._producer.begin_transaction()
        for index, value in enumerate(values):
            self._producer.produce(self.topic, value, partition=index % PARTITIONS)
        self._producer.flush(PATIENCE)


class Process:
    """A copying process, and the lines that it writes."""

    def __init__(self, settings):
        """Start it."""
        self._process = subprocess.Popen(  # noqa: S603  # our own command
            [sys.executable, "-m", "tests.support.consumer.transactional_copy", settings],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._lines = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self):
        for line in self._process.stdout:
            self._lines.put(line.strip())
        self._lines.put("ended")

    def run_for(self, lines):
        """Wait until it has written so many lines; return the last one."""
        last = ""
        for _ in range(lines):
            last = self._lines.get(timeout=PATIENCE)
        return last

    def kill(self):
        """Kill it, unless it has ended."""
        self._process.kill()
        self._process.wait(PATIENCE)
        self._reader.join(PATIENCE)
        self._process.stdin.close()
        self._process.stdout.close()

    def end(self):
        """Wait until it ends; return its exit code."""
        self._process.stdin.close()
        return self._process.wait(PATIENCE)


@contextmanager
def copying(settings):
    """Yield a function that starts the process of a name, or its successor."""
    running = {}

    def start(name):
        if name in running:
            running[name].kill()
        running[name] = Process(json.dumps({**settings, "name": name}))
        return running[name]

    try:
        yield start
    finally:
        for process in running.values():
            process.kill()


def committed_values(kafka, topic):
    """Return the values of all committed records, as librdkafka reads them."""
    consumer = Consumer(
        {
            "bootstrap.servers": kafka.bootstrap_servers,
            "group.id": "not-used",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    places = [ConfluentPartition(topic, each, 0) for each in range(kafka.partition_count(topic))]
    consumer.assign(places)
    found, ends = [], 0
    while ends < len(places):
        message = consumer.poll(PATIENCE)
        assert message is not None
        if message.error() is None:
            found.append(message.value().decode())
        else:
            ends += 1
    consumer.close()
    return found


def committed_offsets(kafka, group):
    [future] = kafka.admin.list_consumer_group_offsets(
        [ConsumerGroupTopicPartitions(group)]
    ).values()
    return {it.partition: it.offset for it in future.result(PATIENCE).topic_partitions}


def test_each_record_is_copied_once_despite_kills(kafka, create_topic):
    """Processes killed between any two steps of a transaction leave each record copied once."""
    chance = random.Random(SEED)
    source = Source(kafka, create_topic(PARTITIONS))
    target, group = create_topic(2), f"copy-{uuid.uuid4().hex[:8]}"
    settings = {
        "bootstrap.servers": kafka.bootstrap_servers,
        "group": group,
        "source": source.topic,
        "target": target,
        "most": MOST,
    }
    with copying(settings) as start:
        with source.writing():
            processes = {name: start(name) for name in NAMES}
            killed_after = []
            for name in chance.choices(NAMES, k=KILLS):
                steps = chance.randint(1, 2 * len(STEPS))
                killed_after.append(processes[name].run_for(steps))
                processes[name] = start(name)
        ends = kafka.end_offsets(source.topic)

        def is_copied():
            committed = committed_offsets(kafka, group)
            # The marker at the end of each partition need not have been passed.
            return all(end - committed.get(each, 0) <= 1 for each, end in ends.items())

        wait_until(is_copied, seconds=PATIENCE, what="all records to be copied")
        assert [0, 0] == [process.end() for process in processes.values()]
    assert "ended" not in killed_after
    kafka.wait_for_markers(target)
    expected = [f"copy of {number}" for number in range(source.count)]
    assert sorted(expected) == sorted(committed_values(kafka, target))
