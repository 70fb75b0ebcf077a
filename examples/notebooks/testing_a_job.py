# %% [markdown]
# # Testing a Spark job
#
# The package includes a Kafka broker for tests, and pytest fixtures that start it within
# milliseconds: no Docker, no JVM, nothing to configure. This notebook tests a small job, and then
# makes the broker fail on purpose.
#
# Besides the package, it needs `pip install jupyterlab "pandas<3" matplotlib pytest`. Run it in
# its own folder, where `log4j2.properties` is.

# %% [markdown]
# ## A job and its tests
#
# The job takes the orders and the brokers' addresses as arguments, so a test can pass its own.

# %%
JOB = """\
from pyspark.sql import functions as f


def send_large(orders, bootstrap_servers):
    rows = orders.where("amount >= 100").select(
        f.col("customer").alias("key"), f.to_json(f.struct("id", "amount")).alias("value")
    )
    (
        rows.write.format("pykafka")
        .mode("append")
        .option("kafka.bootstrap.servers", bootstrap_servers)
        .option("topic", "large-orders")
        .save()
    )
"""

# %% [markdown]
# pytest finds `devbroker` and `start_devbroker` wherever the package is installed. Each test gets a
# broker of its own.

# %%
TESTS = """\
import pytest
from job import send_large
from pyspark.errors import PythonException
from pyspark.sql import SparkSession

from spark_kafka_sink.testing import AnswerError, ApiKey, CloseConnection, ErrorCode


@pytest.fixture(scope="module")
def orders():
    spark = SparkSession.builder.master("local[2]").getOrCreate()
    rows = [(1, "ann", 99), (2, "bob", 100), (3, "ann", 250)]
    yield spark.createDataFrame(rows, "id int, customer string, amount int")
    spark.stop()


def test_only_large_orders_are_sent(devbroker, orders):
    devbroker.create_topic("large-orders", partitions=3)
    send_large(orders, devbroker.bootstrap_servers)
    sent = devbroker.records("large-orders").to_pandas()
    assert sorted(sent["value"]) == ['{"id":2,"amount":100}', '{"id":3,"amount":250}']


def test_a_lost_answer_sends_nothing_twice(devbroker, orders):
    devbroker.create_topic("large-orders")
    fault = devbroker.on(ApiKey.PRODUCE, CloseConnection(handled=True), times=1)
    send_large(orders, devbroker.bootstrap_servers)
    assert fault.fired == 1
    assert devbroker.records("large-orders").count == 2


def test_a_missing_right_is_named(devbroker, orders):
    devbroker.create_topic("large-orders")
    devbroker.on(ApiKey.PRODUCE, AnswerError(ErrorCode.TOPIC_AUTHORIZATION_FAILED))
    with pytest.raises(PythonException, match="Grant this user WRITE on the topic"):
        send_large(orders, devbroker.bootstrap_servers)


def test_one_of_three_brokers_is_away(start_devbroker, orders):
    cluster = start_devbroker(brokers=3, topics={"large-orders": 3})
    cluster.stop(2)
    send_large(orders, cluster.bootstrap_servers)
    assert cluster.records("large-orders").count == 2
"""

# %% [markdown]
# In a project they are two files, and `pytest -v` runs them:

# %%
import re
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

with TemporaryDirectory() as directory:
    (Path(directory) / "job.py").write_text(JOB)
    (Path(directory) / "test_job.py").write_text(TESTS)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-v", "--no-header", "--color=no"),
            *("-p", "no:cacheprovider", "-p", "no:randomly"),
        ],
        cwd=directory,
        capture_output=True,
        text=True,
        check=False,
    )
# The last line also has the time, which differs from run to run: leave it out.
print(re.sub(r"=+ (\d+ \w+) in .*", r"\1", done.stdout).strip())
done.check_returncode()

# %% [markdown]
# ## One fault
#
# The same broker works in a notebook. Here it appends the rows, and then closes the connection
# instead of answering: the producer cannot know whether they were written.

# %%
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from spark_kafka_sink import KafkaSink
from spark_kafka_sink.testing import (
    Action,
    AnswerError,
    ApiKey,
    CloseConnection,
    DevBroker,
    ErrorCode,
    NeverAnswer,
)

broker = DevBroker(topics={"orders": 1}).start()
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
orders = spark.range(1_000).select(f.to_json(f.struct("id")).alias("value")).coalesce(1)

fault = broker.on(ApiKey.PRODUCE, CloseConnection(handled=True), times=1)
(
    orders.write.format("pykafka")
    .mode("append")
    .option("kafka.bootstrap.servers", broker.bootstrap_servers)
    .option("topic", "orders")
    .save()
)
fault

# %% [markdown]
# The producer sent all 1,000 rows again, and the broker recognized them: none is in the topic
# twice.

# %%
KafkaSink.last_report(spark).retries, broker.records("orders").count

# %% [markdown]
# ## The same write with other faults
#
# Each write goes to a topic of its own. Short timeouts make the last write give up within seconds.

# %%
import pandas as pd
from pyspark.errors import PythonException

TIMEOUTS = {"kafka.request.timeout.ms": "1000", "kafka.delivery.timeout.ms": "3000"}
CASES = {
    "no fault": (None, None, {}),
    "an error, twice": (AnswerError(ErrorCode.NOT_LEADER_OR_FOLLOWER), 2, {}),
    "no answer, once": (NeverAnswer(), 1, {"kafka.request.timeout.ms": "1000"}),
    "a lost answer": (CloseConnection(handled=True), 1, {}),
    "a lost answer, acks=1": (CloseConnection(handled=True), 1, {"kafka.acks": "1"}),
    "a lost request, acks=0": (CloseConnection(), 1, {"kafka.acks": "0"}),
    "not authorized": (AnswerError(ErrorCode.TOPIC_AUTHORIZATION_FAILED), None, {}),
    "never an answer": (NeverAnswer(handled=True), None, TIMEOUTS),
}


def write(
    topic: str, fault: Action | None, times: int | None, settings: dict[str, str]
) -> str | None:
    """Write the orders to a new topic, with a fault; return the error, or None."""
    broker.create_topic(topic)
    hook = None if fault is None else broker.on(ApiKey.PRODUCE, fault, times=times)
    options = {"kafka.bootstrap.servers": broker.bootstrap_servers, "topic": topic, **settings}
    try:
        orders.write.format("pykafka").mode("append").options(**options).save()
    except PythonException as error:
        return str(error).partition("spark_kafka_sink.errors.")[2].strip()
    else:
        return None
    finally:
        if hook is not None:
            hook.remove()


errors = {case: write(f"orders-{number}", *how) for number, (case, how) in enumerate(CASES.items())}
results = pd.DataFrame(
    {
        "write": ["fails" if error else "succeeds" for error in errors.values()],
        "rows in the topic": [broker.records(f"orders-{n}").count for n in range(len(CASES))],
    },
    index=list(CASES),
)
results

# %%
import matplotlib.pyplot as plt

figure, axes = plt.subplots(figsize=(6.4, 3.2), layout="constrained")
for outcome, color in (("succeeds", "tab:blue"), ("fails", "tab:orange")):
    rows = results["rows in the topic"].where(results["write"] == outcome)
    bars = axes.barh(results.index, rows, color=color, label=f"the write {outcome}")
    axes.bar_label(bars, fmt="{:,.0f}", color=color, padding=4)
axes.axvline(1_000, color="gray", linestyle="--", linewidth=1, zorder=0)
axes.xaxis.set_major_formatter("{x:,.0f}")
axes.set_xlabel("rows in the topic, of 1,000 written")
axes.margins(x=0.12)
axes.invert_yaxis()
axes.spines[["top", "right"]].set_visible(False)
axes.legend(frameon=False, loc="lower right")
plt.show()

# %% [markdown]
# - With the defaults, a write that succeeds has written each row once, whatever was lost on the
#   way, unless Spark ran a task again.
# - `kafka.acks=1` turns off idempotence, so a retry can write duplicates, and `kafka.acks=0` does
#   not even notice a loss.
# - A write that fails may nevertheless have written its rows, if only the answers were lost.
#
# The errors say what happened, where, and what to do:

# %%
from IPython.display import Markdown

Markdown("\n".join(f"- **{case}**: {error}" for case, error in errors.items() if error))

# %% [markdown]
# [Testing jobs](../../docs/guides/testing.md#faults) lists all faults: throttling, delays, damaged
# answers, functions that look at the request, and brokers that stop and start.

# %%
spark.stop()
broker.stop()
