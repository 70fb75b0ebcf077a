# %% [markdown]
# # Exactly once, whatever is killed
#
# A Spark job copies a topic with two streams: one with the default guarantee, at least once, and
# the other exactly once. The job is killed at the worst moment and restarted. Then every number is
# counted.
#
# Besides the package, this notebook needs `pip install jupyterlab "pandas<3" matplotlib`. Run
# it in its own folder, where `log4j2.properties` is.

# %%
from spark_kafka_sink import KafkaProducer
from spark_kafka_sink.testing import DevBroker

NUMBERS = 6_000
broker = DevBroker(topics={"numbers": 2, "at_least_once": 2, "exactly_once": 2}).start()
with KafkaProducer({"bootstrap.servers": broker.bootstrap_servers}) as producer:
    for number in range(NUMBERS):
        producer.send("numbers", b"%d" % number, partition=number % 2)
broker

# %% [markdown]
# ## The job
#
# Two options make a stream exactly once: `deliveryGuarantee`, and a prefix that names the query. A
# micro-batch has at most 1,000 numbers.

# %%
from pyspark.sql import SparkSession


def copy_numbers(bootstrap_servers: str, directory: str) -> None:
    """Copy the numbers to two topics, each named after its guarantee, and stop."""
    spark = (
        SparkSession.builder.master("local[8]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.python.unix.domain.socket.enabled", "true")
        .config("spark.driver.extraJavaOptions", "-Dlog4j2.configurationFile=log4j2.properties")
        .getOrCreate()
    )
    servers = {"kafka.bootstrap.servers": bootstrap_servers}
    exactly_once = {"deliveryGuarantee": "exactly_once", "transactionalIdPrefix": "copy-of-numbers"}
    for topic, options in {"at_least_once": {}, "exactly_once": exactly_once}.items():
        (
            spark.readStream.format("pykafka")
            .schema("value binary")
            .options(**servers, subscribe="numbers", startingOffsets="earliest")
            .option("maxOffsetsPerTrigger", 1_000)
            .load()
            .writeStream.format("pykafka")
            .options(**servers, topic=topic, checkpointLocation=f"{directory}/{topic}", **options)
            .trigger(availableNow=True)
            .start()
        )
    for query in spark.streams.active:
        query.awaitTermination()


# %% [markdown]
# The job runs in a process of its own, so that killing it does not kill this notebook.

# %%
import inspect
import subprocess
import sys
import tempfile
from pathlib import Path

directory = tempfile.TemporaryDirectory()
job = Path(directory.name, "job.py")
job.write_text(
    "import sys\n\nfrom pyspark.sql import SparkSession\n\n\n"
    f"{inspect.getsource(copy_numbers)}\n\ncopy_numbers(*sys.argv[1:])\n"
)


def start_job() -> subprocess.Popen[bytes]:
    """Start the job in a process group of its own."""
    command = [sys.executable, str(job), broker.bootstrap_servers, directory.name]
    return subprocess.Popen(command, start_new_session=True)


# %% [markdown]
# ## The worst moment
#
# To hit the same moment on every machine, the broker stops answering at the fourth micro-batch: it
# stores the rows, but neither Spark nor the sink can know that they have arrived.

# %%
from typing import Any

from spark_kafka_sink.testing import ApiKey, NeverAnswer

TASKS = 2  # in each micro-batch, of one request each
requests = {"at_least_once": 0, "exactly_once": 0}


def lose_answers(request: Any, _context: object) -> NeverAnswer | None:
    """Drop all answers but those of the first three micro-batches of each stream."""
    transactional_id = request.transactional_id or ""
    if transactional_id.endswith(".ledger"):  # the topic with its decisions
        return None
    stream = "exactly_once" if transactional_id else "at_least_once"
    requests[stream] += 1
    return NeverAnswer(handled=True) if requests[stream] > 3 * TASKS else None


fault = broker.on(ApiKey.PRODUCE, lose_answers)

# %% [markdown]
# The job starts. As soon as both streams are waiting for answers, all of its processes are killed.

# %%
import os
import signal
import time

process = start_job()
try:
    give_up = time.monotonic() + 500
    while min(requests.values()) < 4 * TASKS:
        if process.poll() is not None or time.monotonic() > give_up:
            raise RuntimeError("the job has not come to its fourth micro-batch")
        time.sleep(0.1)
finally:
    os.killpg(process.pid, signal.SIGKILL)
signal.Signals(-process.wait()).name

# %% [markdown]
# Three micro-batches are complete. The fourth is in both topics, but in `exactly_once` its
# transaction is open, so `read_committed` consumers do not see it.

# %%
import pandas as pd

from spark_kafka_sink import read_arrow


def numbers_in(topic: str, isolation_level: str) -> pd.Series:
    """Return the numbers that a consumer reads from a topic."""
    settings = {"isolation.level": isolation_level}
    table = read_arrow(broker.bootstrap_servers, topic, columns=["value"], settings=settings)
    return table.read_all().to_pandas()["value"].astype(int)


topics = ["at_least_once", "exactly_once"]
pd.DataFrame(
    {
        level: [len(numbers_in(topic, level)) for topic in topics]
        for level in ("read_uncommitted", "read_committed")
    },
    index=topics,
)

# %% [markdown]
# ## Restart
#
# The same job continues both streams from their checkpoints.

# %%
fault.remove()
start_job().wait(500)

# %% [markdown]
# ## Count
#
# How often does a `read_committed` consumer read each number?

# %%
times = pd.DataFrame(
    {topic: numbers_in(topic, "read_committed").value_counts() for topic in topics},
    index=range(NUMBERS),
).fillna(0)

pd.DataFrame({"missing": (times == 0).sum(), "duplicated": (times > 1).sum()})

# %%
import matplotlib.pyplot as plt

figure, panels = plt.subplots(2, figsize=(6, 3), sharex=True, sharey=True, layout="constrained")
for axes, topic in zip(panels, topics, strict=True):
    axes.fill_between(times.index, times[topic], step="mid", color="tab:blue")
    axes.fill_between(
        times.index, 1, times[topic], where=times[topic] > 1, step="mid", color="tab:red"
    )
    axes.set_title(topic, loc="left")
    axes.set_yticks([0, 1, 2], ["0", "once", "twice"])
    axes.spines[["top", "right"]].set_visible(False)
panels[-1].xaxis.set_major_formatter("{x:,.0f}")
panels[-1].set_xlabel("number")
plt.show()

# %% [markdown]
# The first stream wrote the fourth micro-batch again, so its numbers are in the topic twice. The
# exactly-once stream aborted the open transaction before it wrote them again. [Exactly
# once](../../docs/guides/exactly-once.md) has the guarantees and their conditions.

# %%
broker.stop()
directory.cleanup()
