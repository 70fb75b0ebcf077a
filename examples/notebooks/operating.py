# %% [markdown]
# # Operating a job: errors, reports, open transactions
#
# This notebook shows the errors that you may see, the report of a write, and what to do about a job
# that was killed in the middle of a transaction.
#
# Besides the package, this notebook needs `pip install jupyterlab "pandas<3" matplotlib`. Run
# it in its own folder, where `log4j2.properties` is.

# %%
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from spark_kafka_sink import KafkaError, KafkaProducer, KafkaSink
from spark_kafka_sink.testing import ApiKey, DevBroker, NeverAnswer

broker = DevBroker(topics={"orders": 6, "payments": 1}).start()
spark = (
    SparkSession.builder.master("local[2]")
    .config("spark.ui.enabled", "false")
    .config("spark.ui.showConsoleProgress", "false")
    .config("spark.python.unix.domain.socket.enabled", "true")
    .config("spark.driver.extraJavaOptions", "-Dlog4j2.configurationFile=log4j2.properties")
    .getOrCreate()
)
# A write that fails raises an exception, so Spark need not log it, too.
spark.sparkContext.setLogLevel("OFF")
broker

# %% [markdown]
# ## Before the write
#
# Half of these orders are from one customer. `KafkaSink.check` checks the columns and options
# against the cluster, and runs no job.

# %%
number = f.col("id")
orders = spark.range(240_000).select(
    f.when(number % 2 == 0, "customer-0")
    .otherwise(f.format_string("customer-%d", number % 499))
    .alias("key"),
    f.to_json(f.struct("id", (number % 97).alias("price"))).alias("value"),
)
options = {"kafka.bootstrap.servers": broker.bootstrap_servers, "topic": "orders"}

KafkaSink.check(orders, options)

# %% [markdown]
# It finds mistakes, and each error is one sentence: what is wrong, where, and what to do.

# %%
from IPython.display import Markdown


def mistake(df: DataFrame, **changes: str) -> str:
    """Return what `check` says about a write, as an item of a list."""
    try:
        return f"- {KafkaSink.check(df, {**options, **changes})}"
    except KafkaError as error:
        return f"- **{type(error).__name__}**: {error}"


mistakes = [
    mistake(orders, topic="order"),
    mistake(orders.drop("value")),
    mistake(orders.withColumn("key", f.lit(7))),
    mistake(orders, **{"kafka.ack": "all"}),
]
Markdown("\n".join(mistakes))

# %% [markdown]
# An error in a single row is found when the row is written. `row 3 of task 0` is the fourth row of
# the first task, since both are counted from 0.

# %%
from pyspark.errors import PythonException

large = (
    spark.range(10)
    .coalesce(1)
    .selectExpr("'customer-7' AS key", "repeat('x', if(id = 3, 2000000, 10)) AS value")
)
try:
    large.write.format("pykafka").mode("append").options(**options).save()
    said = "no error"
except PythonException as error:
    name, _, text = str(error).partition("spark_kafka_sink.errors.")[2].partition(": ")
    said = f"- **{name}**: {text}"
Markdown(said)

# %% [markdown]
# ## After the write
#
# The orders are written twice: to all partitions in turn, and by key, which is the default. The
# driver keeps the reports of both. It also prints the first line of each to its standard error, or
# all of it with the option `report=full`. `reportPath` writes it to a file as JSON.

# %%
import json
from pathlib import Path
from tempfile import TemporaryDirectory

in_turn = {**options, "kafka.partitioner.class": "round_robin"}
orders.write.format("pykafka").mode("append").options(**in_turn).save()

with TemporaryDirectory() as directory:
    path = Path(directory) / "report.json"
    orders.write.format("pykafka").mode("append").options(**options, reportPath=str(path)).save()
    stored_report = json.loads(path.read_text())

KafkaSink.last_report(spark)

# %%
stored_report["topics"]["orders"][0]

# %% [markdown]
# By key, all orders of a customer are in one partition, so one busy customer makes one partition
# large. In turn, the rows are spread evenly, but the orders of a customer are no longer read in the
# order in which they were written. `last_reports` has both writes.

# %%
import matplotlib.pyplot as plt

figure, both = plt.subplots(
    1, 2, figsize=(7.2, 2.8), sharex=True, sharey=True, layout="constrained"
)
reports = KafkaSink.last_reports(spark, limit=2)
for axes, title, report in zip(both, ("in turn", "by key"), reports, strict=True):
    rows = {place.partition: acks.records for place, acks in report.partitions}
    bars = axes.barh([f"partition {number}" for number in rows], list(rows.values()))
    axes.bar_label(bars, fmt="{:,.0f}", padding=4)
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.locator_params(axis="x", nbins=4)
    axes.set(title=title, xlabel="rows")
    axes.margins(x=0.3)
    axes.spines[["top", "right"]].set_visible(False)
both[0].invert_yaxis()
plt.show()

# %% [markdown]
# ## Metrics
#
# A report contains the metrics of all its producers. `KafkaProducer.metrics`, without Spark, has
# the names, groups and tags of Java's client.

# %%
reports[-1].metrics

# %%
import pandas as pd

SHOWN = (
    *("record-send-total", "record-retry-total", "record-error-total"),
    *("batch-size-avg", "compression-rate-avg", "request-latency-avg"),
)
with KafkaProducer({"bootstrap.servers": broker.bootstrap_servers}) as producer:
    for number in range(1_000):
        producer.send("orders", b"an order", key=b"customer-%d" % number)
    producer.flush()
    values = {
        name.name: metric.value()
        for name, metric in producer.metrics().items()
        if name.group == "producer-metrics" and name.name in SHOWN
    }
pd.Series(values).map("{:,.2f}".format).to_frame("value")

# %% [markdown]
# ## A job that was killed
#
# An exactly-once job writes its rows in a transaction. Here the broker stores them, but does not
# answer, and the job is killed while it waits: its transaction stays open.

# %%
import os
import signal
import subprocess
import sys
import time
from typing import Any

JOB = """
import sys
from pyspark.sql import SparkSession

spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
(
    spark.range(100).coalesce(1).selectExpr("cast(id AS string) AS value")
    .write.format("pykafka").mode("append")
    .option("kafka.bootstrap.servers", sys.argv[1])
    .option("topic", "payments")
    .option("deliveryGuarantee", "exactly_once")
    .option("transactionalIdPrefix", "payments-job")
    .option("writeId", "2026-11-22")
    .save()
)
"""


def stall(request: Any, _context: object) -> NeverAnswer | None:
    """Store the rows of the job's task, and never answer; what the driver writes is answered."""
    is_task = not request.transactional_id.endswith(".ledger")
    return NeverAnswer(handled=True) if is_task else None


stalled = broker.on(ApiKey.PRODUCE, stall)
job = subprocess.Popen(
    [sys.executable, "-c", JOB, broker.bootstrap_servers],
    stdout=subprocess.DEVNULL,
    stderr=subprocess.DEVNULL,
    start_new_session=True,
)
deadline = time.monotonic() + 300
while not stalled.fired and time.monotonic() < deadline:
    time.sleep(0.1)
os.killpg(job.pid, signal.SIGKILL)  # with its JVM
job.wait()
stalled.remove()
if not stalled.fired:
    raise RuntimeError("the job has not written anything")
stalled

# %% [markdown]
# Meanwhile another application writes 50 payments. Consumers with `read_committed` do not see them:
# they wait for the end of the transaction before them.

# %%
payments = spark.range(50).selectExpr("cast(id AS string) AS value")
payments.write.format("pykafka").mode("append").options(**options | {"topic": "payments"}).save()


def visible() -> int:
    """Return how many payments a `read_committed` consumer sees."""
    return (
        spark.read.format("pykafka")
        .option("kafka.bootstrap.servers", broker.bootstrap_servers)
        .option("subscribe", "payments")
        .option("kafka.isolation.level", "read_committed")
        .load()
        .count()
    )


visible()

# %% [markdown]
# The command `transactions list` shows what holds the payments back.

# %%
import re

VARIES = (
    r"(?<=generation )\d+|(?<=claimed by ).*|(?<=open for )\d+|(?<=producer id )\d+|[0-9a-f]{32}"
)


def transactions(*arguments: str) -> None:
    """Run the command and print its output, with * for what differs from run to run."""
    command = [sys.executable, "-m", "spark_kafka_sink.transactions", *arguments]
    done = subprocess.run(
        [*command, "--bootstrap-server", broker.bootstrap_servers],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=True,
    )
    print(re.sub(VARIES, "*", done.stdout).strip())


transactions("list", "--topic", "payments")

# %% [markdown]
# `abort` ends the open transactions of a prefix, except those that a driver has already decided to
# commit. Starting the job again would do the same.

# %%
transactions("abort", "--prefix", "payments-job", "--dry-run")
transactions("abort", "--prefix", "payments-job")
transactions("list", "--topic", "payments")

# %% [markdown]
# The 50 payments are visible now, and none of the rows of the killed job.

# %%
visible()

# %% [markdown]
# [Operations](../../docs/guides/operations.md#open-transactions) says what else the command can do.

# %%
spark.stop()
broker.stop()
