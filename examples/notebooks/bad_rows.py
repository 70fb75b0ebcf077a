# %% [markdown]
# # Bad rows: find them, set them aside, read them back
#
# A stream of orders has rows that Kafka can never accept. One of them would stop it at every
# restart, until somebody deploys code. Here they become dead letters, in the same transactions as
# the good rows. Then a dry run shows them before anything is written.
#
# Besides the package, this notebook needs `pip install jupyterlab "pandas<3" matplotlib`. Run
# it in its own folder, where `log4j2.properties` is.

# %%
from spark_kafka_sink.testing import DevBroker

broker = DevBroker(topics={"orders": 4, "dead-letters": 1}).start()
broker

# %%
from pyspark.sql import SparkSession

spark = (
    SparkSession.builder.master("local[2]")
    .config("spark.ui.enabled", "false")
    .config("spark.ui.showConsoleProgress", "false")
    .config("spark.python.unix.domain.socket.enabled", "true")
    .config("spark.driver.extraJavaOptions", "-Dlog4j2.configurationFile=log4j2.properties")
    .getOrCreate()
)
spark.sparkContext.setLogLevel("OFF")

# %% [markdown]
# ## Orders, and what is wrong with some
#
# One in a hundred asks for partition 7 of a topic that has four. One in two hundred has a timestamp
# before 1970. And three have an attachment that is larger than `kafka.max.request.size`.

# %%
import tempfile
from pathlib import Path

from pyspark.sql import DataFrame

directory = tempfile.TemporaryDirectory()
source = Path(directory.name) / "source"
spark.range(10_000).repartition(4).write.parquet(str(source))


def orders_of(numbers: DataFrame) -> DataFrame:
    """Return the columns of an order for each number."""
    return numbers.selectExpr(
        "concat('customer-', id % 97) as key",
        "concat('order ', id, if(id % 3000 = 1234, repeat('x', 2000000), '')) as value",
        "int(if(id % 100 = 50, 7, null)) as partition",
        "timestamp_millis(if(id % 200 = 75, -1, null)) as timestamp",
    )


orders = orders_of(spark.read.parquet(str(source)))
orders.where("length(value) < 100").limit(3).toPandas()

# %% [markdown]
# ## Before the write: a dry run
#
# With `sample`, `KafkaSink.check` encodes rows as the write would, and sends none. It shows how the
# rows spread over partitions, how large they are, and which of them cannot be written. By default,
# the first of those ends the write:

# %%
from spark_kafka_sink import KafkaSink

options = {"kafka.bootstrap.servers": broker.bootstrap_servers, "topic": "orders"}
checked = KafkaSink.check(orders, options, sample=100_000)
checked

# %% [markdown]
# All of it is in attributes, too.

# %%
tried = checked.dry_run
dict(tried.bad_rows.counts), tried.value_sizes.p99, broker.records("orders").count

# %% [markdown]
# ## The stream
#
# `onError=dlq` makes each of them a dead letter. `maxErrors` says how many are too many: here, more
# than 5 % of a micro-batch end the stream.

# %%
query = (
    orders_of(spark.readStream.schema("id long").parquet(str(source)))
    .writeStream.format("pykafka")
    .options(**options, onError="dlq", dlqTopic="dead-letters", maxErrors="5%")
    .option("deliveryGuarantee", "exactly_once")
    .option("transactionalIdPrefix", "orders")
    .option("checkpointLocation", f"{directory.name}/checkpoint")
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()
report = KafkaSink.last_report(spark, query=query)
report.rows, report.bad_rows.count, report.bad_rows.dlq_topic

# %% [markdown]
# Rows and dead letters together are the input. Both are read as any topic is.


# %%
def read(topic: str) -> DataFrame:
    """Return the committed records of a topic."""
    return (
        spark.read.format("pykafka")
        .option("kafka.bootstrap.servers", broker.bootstrap_servers)
        .option("kafka.isolation.level", "read_committed")
        .option("includeHeaders", "true")
        .option("subscribe", topic)
        .load()
    )


read("orders").count(), read("dead-letters").count()

# %% [markdown]
# ## The dead letters
#
# Headers say why each row is here, and from where it came. They have the names that Kafka Connect
# gives them, and some of their own.

# %%
headers = "map_from_entries(transform(headers, h -> struct(h.key, string(h.value))))"
letters = read("dead-letters").selectExpr(
    "string(key) as key",
    "string(value) as value",
    f"{headers} as headers",
)
columns = {
    "row": "__pykafka.errors.row",
    "kind": "__pykafka.errors.kind",
    "truncated": "__pykafka.errors.truncated",
    "error": "__connect.errors.exception.message",
}
shown = letters.selectExpr(
    "key",
    "left(value, 20) as value",
    "length(value) as length",
    *[f"headers['{header}'] as {name}" for name, header in columns.items()],
).toPandas()
shown.sort_values(["kind", "value"]).groupby("kind").head(1).reset_index(drop=True)

# %%
import matplotlib.pyplot as plt

figure, (left, right) = plt.subplots(1, 2, figsize=(7.2, 2.4), layout="constrained")
kinds = shown["kind"].value_counts().sort_values()
left.bar_label(left.barh(kinds.index, kinds, color="tab:red"), padding=3)
left.set_title("dead letters by kind", loc="left", fontsize="medium")
rows = {place.partition: count for place, count in tried.rows_by_partition.items()}
bars = right.barh([f"partition {number}" for number in rows], list(rows.values()))
right.bar_label(bars, fmt="{:,.0f}", padding=3)
right.invert_yaxis()
right.set_title("rows by partition, from the dry run", loc="left", fontsize="medium")
for axes in (left, right):
    axes.margins(x=0.25)
    axes.spines[["top", "right"]].set_visible(False)
plt.show()

# %% [markdown]
# ## Mended, and sent again
#
# Whoever knows what was meant corrects the letters and sends them to the topic that a header names.
# Here the partition and the timestamp are left to the producer. The large ones are left out: their
# letters were truncated.

# %%
mended = letters.where("headers['__pykafka.errors.truncated'] is null").selectExpr(
    "key", "value", "headers['__connect.errors.topic'] as topic"
)
servers = {"kafka.bootstrap.servers": broker.bootstrap_servers}
mended.write.format("pykafka").mode("append").options(**servers).save()
read("orders").count()

# %% [markdown]
# The guide to [bad rows](../../docs/guides/bad-rows.md) lists which rows are bad, and all headers.

# %%
query.stop()
spark.stop()
broker.stop()
directory.cleanup()
