# %% [markdown]
# # A schema evolves while a stream runs
#
# A shop sends its orders as Avro, by a schema in a Schema Registry. A stream copies them as
# structs. Then the shop adds a field. Nothing is lost and nothing deployed: the stream asks for a
# restart, and reads the new field from then on.
#
# Besides the package, this notebook needs `pip install jupyterlab "pandas<3" matplotlib`. Run
# it in its own folder, where `log4j2.properties` is.

# %%
from spark_kafka_sink.testing import DevBroker

broker = DevBroker(topics={"orders": 3, "copy": 3}, schema_registry=True).start()
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
# It needs no Spark. The schema is derived from the columns and registered, under the subject
# `orders-value`.

# %%
import pyarrow as pa

from spark_kafka_sink import KafkaProducer

registry = {"url": broker.schema_registry_url}
producer = KafkaProducer({"bootstrap.servers": broker.bootstrap_servers})


def send(orders: list[dict[str, object]]) -> tuple[str, ...]:
    """Send orders; return by which schemas they were encoded."""
    sent = producer.send_arrow(
        pa.table({"value": orders}),
        topic="orders",
        value_format="avro",
        schema_registry=registry,
        format_options={"autoRegisterSchemas": "true"},
    )
    sent.result(60)
    return sent.schemas


send([{"id": number, "amount": number * 1.5} for number in range(1000)])

# %% [markdown]
# ## The stream
#
# Its column `value` is a struct with the fields of the newest schema. The copy is written exactly
# once, and as Avro again, by a schema that is derived from the column.

# %%
import tempfile

from pyspark.sql.streaming import StreamingQuery

directory = tempfile.TemporaryDirectory()
options = {
    "kafka.bootstrap.servers": broker.bootstrap_servers,
    "schema.registry.url": broker.schema_registry_url,
    "valueFormat": "avro",
}


def start_stream() -> StreamingQuery:
    """Start the copy, or resume it from its checkpoint."""
    orders = (
        spark.readStream.format("pykafka")
        .options(**options, subscribe="orders", startingOffsets="earliest")
        .option("schemaEvolutionMode", "restart")
        .load()
    )
    print(orders.schema["value"].dataType.simpleString())
    return (
        orders.select("value")
        .writeStream.format("pykafka")
        .options(**options, topic="copy", autoRegisterSchemas="true")
        .option("deliveryGuarantee", "exactly_once")
        .option("transactionalIdPrefix", "copy-of-orders")
        .option("checkpointLocation", f"{directory.name}/checkpoint")
        .start()
    )


query = start_stream()
query.processAllAvailable()
broker.records("copy").count

# %% [markdown]
# ## The shop adds a field
#
# The stream began with a schema that does not have it. With `schemaEvolutionMode=none` it would go
# on without the field, and warn once. With `restart` it stops, and says why:

# %%
send([{"id": 1000 + number, "amount": 2.5, "channel": "web"} for number in range(1000)])

# %%
from pyspark.errors import StreamingQueryException


def why_it_stopped(query: StreamingQuery) -> str:
    """Wait until the stream has failed; return the sentence that says why."""
    try:
        query.awaitTermination(120)
    except StreamingQueryException as error:
        text = str(error)
        return text[text.index("topic ") :].splitlines()[0]
    raise AssertionError("the stream goes on")


print(why_it_stopped(query))

# %% [markdown]
# A job has this loop in it, or whatever runs the job starts it again: the new query finds the newer
# schema and resumes where the old one stopped. Orders of the old schema have a null.

# %%
query = start_stream()
query.processAllAvailable()
broker.records("copy").count

# %% [markdown]
# ## Count
#
# The copy has each order once, whichever schema it was sent by.

# %%
copy = spark.read.format("pykafka").options(**options, subscribe="copy").load().select("value.*")
copy.createOrReplaceTempView("copied")
counts = spark.sql(
    "select channel, count(*) as orders, count(distinct id) as ids, sum(amount) as amount "
    "from copied group by channel order by channel"
).toPandas()
counts

# %%
import matplotlib.pyplot as plt

figure, axes = plt.subplots(figsize=(6.4, 1.8), layout="constrained")
bars = axes.barh(["without a channel", "web"], counts["orders"], color=["tab:gray", "tab:blue"])
axes.bar_label(bars, fmt="{:,.0f}", padding=3)
axes.set_title("orders in the copy", loc="left", fontsize="medium")
axes.spines[["top", "right"]].set_visible(False)

# %% [markdown]
# What a registry accepts as a compatible change is its own setting, and this one has the default,
# `BACKWARD`: new fields need a default, which `autoRegisterSchemas` gives to all that may be null.
# See the guide to [Avro and the Schema Registry](../../docs/guides/avro.md).

# %%
query.stop()
producer.close()
spark.stop()
broker.stop()
directory.cleanup()
