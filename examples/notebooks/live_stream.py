# %% [markdown]
# # A stream, live
#
# A shop sends clicks, and a stream copies them while a chart follows its rows, its speed and its
# lag. The stream is stopped midway and resumed. In the end every click is counted.
#
# Besides the package, this notebook needs `pip install jupyterlab "pandas<3" matplotlib`. Run
# it in its own folder, where `log4j2.properties` is.

# %%
from spark_kafka_sink.testing import DevBroker

broker = DevBroker(topics={"clicks": 3, "copy": 3}).start()
broker

# %%
from pyspark.sql import SparkSession

spark = (
    SparkSession.builder.master("local[3]")
    .config("spark.ui.enabled", "false")
    .config("spark.ui.showConsoleProgress", "false")
    .config("spark.python.unix.domain.socket.enabled", "true")
    .config("spark.driver.extraJavaOptions", "-Dlog4j2.configurationFile=log4j2.properties")
    .getOrCreate()
)

# %% [markdown]
# ## The shop
#
# A thread sends numbered clicks with the package's own producer, which needs no Spark. In its busy
# hour, which has 10,000 clicks, it sends four times as fast.

# %%
import math
import threading
import time

from spark_kafka_sink import KafkaProducer

CLICKS = 30_000
BUSY = range(8_000, 18_000)


class Shop(threading.Thread):
    """Sends the clicks, with a pause after every hundred of them."""

    sent = 0
    is_open = threading.Event()

    def run(self) -> None:
        """Send all clicks."""
        with KafkaProducer({"bootstrap.servers": broker.bootstrap_servers}) as producer:
            for number in range(CLICKS):
                producer.send("clicks", b"%d" % number, key=b"customer-%d" % (number % 500))
                if (number + 1) % 100 == 0:
                    producer.flush()
                    self.sent = number + 1
                    self.is_open.wait()
                    time.sleep(0.02 if number in BUSY else 0.08)


shop = Shop(daemon=True)

# %% [markdown]
# ## The stream
#
# A micro-batch has at most 2,000 clicks. They are written exactly once, so the stream may be
# stopped at any moment. Its checkpoint records where to continue.

# %%
import tempfile

from pyspark.sql.streaming import StreamingQuery

directory = tempfile.TemporaryDirectory()
servers = {"kafka.bootstrap.servers": broker.bootstrap_servers}
report_path = f"{directory.name}/report.jsonl"


def start_stream() -> StreamingQuery:
    """Start the copy, or resume it from its checkpoint."""
    clicks = (
        spark.readStream.format("pykafka")
        .schema("key binary, value binary")
        .options(**servers, subscribe="clicks", startingOffsets="earliest")
        .option("maxOffsetsPerTrigger", 2_000)
        .load()
    )
    return (
        clicks.writeStream.format("pykafka")
        .options(**servers, topic="copy", reportPath=report_path)
        .option("deliveryGuarantee", "exactly_once")
        .option("transactionalIdPrefix", "copy-of-clicks")
        .option("checkpointLocation", f"{directory.name}/checkpoint")
        .start()
    )


# %% [markdown]
# ## Follow the stream
#
# A listener gets an event after each micro-batch, with the lag (how many records the stream has not
# read yet) and the sink's report: rows, bytes, speed, retries.

# %%
from spark_kafka_sink.observability import KafkaStreamListener, ReportFile, StreamEvent

batches: list[tuple[float, float, int]] = []


class Collector:
    """Keeps the time, rows per second and lag of each micro-batch for the chart."""

    def export(self, event: StreamEvent) -> None:
        """Keep the numbers of an event that has a report."""
        if event.report is not None and event.batch_id:  # the first batch only starts the workers
            # A micro-batch that Spark repeats after a restart comes without the latest offsets.
            lag = sum(event.lag["clicks"].values()) if "clicks" in event.lag else math.nan
            speed = event.report["rows_per_second"] or 0.0
            batches.append((time.monotonic() - began, speed, lag))


spark.streams.addListener(KafkaStreamListener(Collector(), reports=ReportFile(report_path)))

# %% [markdown]
# ## The chart
#
# `watch` redraws one chart twice a second until enough clicks are copied. The shop counts the
# clicks that it has sent, and the broker those in the copy.

# %%
import IPython
import matplotlib.pyplot as plt
from matplotlib.axes import Axes

samples: list[tuple[float, int, int]] = []
pause: list[float] = []


def sample() -> int:
    """Count the clicks that are sent and copied so far; return those that are copied."""
    copied = broker.records("copy").count
    samples.append((time.monotonic() - began, shop.sent, copied))
    return copied


def runs() -> list[list[tuple[float, float, int]]]:
    """Return the micro-batches before and after the pause."""
    resumed = pause[-1] if pause else float("inf")
    return [
        [batch for batch in batches if batch[0] < resumed],
        [batch for batch in batches if batch[0] >= resumed],
    ]


def draw(rows: Axes, speed: Axes, lag: Axes) -> None:
    """Show all numbers in the three panels."""
    for axes, name in ((rows, "clicks"), (speed, "rows per second"), (lag, "lag")):
        axes.clear()
        axes.set_title(name, loc="left", fontsize="medium")
        axes.yaxis.set_major_formatter("{x:,.0f}")
        axes.spines[["top", "right"]].set_visible(False)
        if pause:
            axes.axvspan(pause[0], pause[-1], color="0.9", linewidth=0)
    seconds, sent, copied = zip(*samples, strict=True)
    rows.plot(seconds, sent, color="tab:gray", linestyle="dashed", label="sent")
    rows.plot(seconds, copied, color="tab:blue", label="copied")
    rows.legend(loc="upper left", frameon=False)
    for axes, color, column in ((speed, "tab:blue", 1), (lag, "tab:red", 2)):
        # A line would join the runs before and after the pause, so each has one of its own.
        for run in runs():
            seconds = [batch[0] for batch in run]
            numbers = [batch[column] for batch in run]
            axes.plot(seconds, numbers, color=color, marker="o", markersize=3)
            axes.fill_between(seconds, numbers, color=color, alpha=0.15, linewidth=0)
        axes.set_ylim(bottom=0)
    lag.set_xlim(left=0)
    lag.set_xlabel("seconds")


def watch(clicks: int, seconds: float = 500) -> None:
    """Update a chart until `clicks` of them are copied; fail after `seconds`."""
    figure, panels = plt.subplots(3, figsize=(6.4, 5), sharex=True, layout="constrained")
    chart = IPython.display.display(figure, display_id=True)
    plt.close(figure)  # or it would appear once more at the end of the cell
    give_up = time.monotonic() + seconds
    copied = -1
    while copied < clicks:
        if time.monotonic() > give_up:
            raise TimeoutError(f"{copied} of {clicks} clicks were copied in {seconds} seconds")
        time.sleep(0.5)
        copied = sample()
        draw(*panels)
        chart.update(figure)


# %% [markdown]
# ## Start
#
# The first micro-batch takes longer, because Spark starts its workers. So the shop waits until its
# first hundred clicks are copied.

# %%
shop.start()
query = start_stream()
while query.isActive and broker.records("copy").count == 0:
    time.sleep(0.1)
began = time.monotonic()
shop.is_open.set()
watch(10_000)

# %% [markdown]
# ## Stop
#
# The shop goes on, but for a while nothing copies its clicks.

# %%
query.stop()
pause.append(time.monotonic() - began)
goal = shop.sent + 6_000
sample()
while shop.is_alive() and shop.sent < goal:
    time.sleep(0.1)
sample()
pause.append(time.monotonic() - began)
query.isActive

# %% [markdown]
# ## Resume
#
# The new query continues where the old one stopped, and catches up. The gray area is the time
# without a stream; after it, the new query needs some seconds to start.

# %%
query = start_stream()
watch(CLICKS)

# %% [markdown]
# ## Count
#
# Is a click missing, or was one copied twice?

# %%
import pandas as pd

query.processAllAvailable()
times = broker.records("copy").to_pandas()["value"].value_counts()
counts = {
    "clicks sent": shop.sent,
    "records in the copy": times.sum(),
    "clicks missing": CLICKS - len(times),
    "clicks copied twice": (times > 1).sum(),
}
pd.Series(counts).map("{:,}".format).to_frame("number")

# %% [markdown]
# The same listener exports to Prometheus and OpenTelemetry: see
# [Observability](../../docs/guides/observability.md). The sink's last report says how fast the last
# micro-batch was written, and where:

# %%
from spark_kafka_sink import KafkaSink

KafkaSink.last_report(spark, query=query)

# %%
query.stop()
spark.stop()
broker.stop()
directory.cleanup()
