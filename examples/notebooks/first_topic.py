# %% [markdown]
# # From zero to a topic and back
#
# There is no Kafka to install: the package has a broker of its own for notebooks and tests. This
# notebook starts it, writes a DataFrame to a topic, looks at what arrived, and reads it back.
#
# Besides the package, this notebook needs `pip install jupyterlab "pandas<3" matplotlib`. Run
# it in its own folder, where `log4j2.properties` is.

# %%
from spark_kafka_sink.testing import DevBroker

broker = DevBroker(topics={"orders": 3}).start()
broker

# %% [markdown]
# This is an ordinary Spark session. `log4j2.properties` hides all of Spark's log messages except
# errors.

# %%
from pyspark.sql import SparkSession

spark = (
    SparkSession.builder.master("local[2]")
    .config("spark.ui.enabled", "false")
    .config("spark.ui.showConsoleProgress", "false")
    .config("spark.python.unix.domain.socket.enabled", "true")
    .config("spark.sql.shuffle.partitions", "2")
    .config("spark.driver.extraJavaOptions", "-Dlog4j2.configurationFile=log4j2.properties")
    .getOrCreate()
)

# %% [markdown]
# ## Write
#
# Each row becomes a record: `key` decides the partition, and `value` is the content.
# `KafkaSink.check` finds a wrong option or column before a job runs.

# %%
from pyspark.sql import functions as f

from spark_kafka_sink import KafkaSink

orders = spark.range(10_000).select(
    f.format_string("customer-%03d", f.col("id") % 400).alias("key"),
    f.to_json(f.struct("id", (f.col("id") * 7 % 100).alias("price"))).alias("value"),
)
options = {"kafka.bootstrap.servers": broker.bootstrap_servers, "topic": "orders"}

KafkaSink.check(orders, options)

# %%
orders.write.format("pykafka").mode("append").options(**options).save()

# %% [markdown]
# ## Look
#
# The broker shows its topics. `records` returns what a consumer would read, as lists, Arrow or
# pandas.

# %%
broker

# %%
broker.records("orders").to_pandas().drop(columns=["timestamp", "headers"]).head()

# %% [markdown]
# ## Read it back with Spark

# %%
records = (
    spark.read.format("pykafka")
    .option("kafka.bootstrap.servers", broker.bootstrap_servers)
    .option("subscribe", "orders")
    .load()
)
prices = (
    records.select("partition", f.get_json_object(f.col("value").cast("string"), "$.price"))
    .toDF("partition", "price")
    .groupBy("partition")
    .agg(f.count("*").alias("orders"), f.sum("price").cast("long").alias("total"))
    .orderBy("partition")
    .toPandas()
)
prices

# %%
import matplotlib.pyplot as plt

figure, axes = plt.subplots(figsize=(6, 2.2), layout="constrained")
bars = axes.barh([f"partition {number}" for number in prices["partition"]], prices["orders"])
axes.bar_label(bars, fmt="{:,.0f}", padding=4)
axes.xaxis.set_major_formatter("{x:,.0f}")
axes.set_xlabel("orders")
axes.margins(x=0.12)
axes.invert_yaxis()
axes.spines[["top", "right"]].set_visible(False)
plt.show()

# %% [markdown]
# ## Without Spark
#
# The same package has a producer. `send` returns a future, whose result says where
# the record was stored.

# %%
from spark_kafka_sink import KafkaProducer

with KafkaProducer({"bootstrap.servers": broker.bootstrap_servers}) as producer:
    stored = producer.send("orders", b'{"id": 10000, "price": 5}', key=b"customer-000").result()
stored

# %% [markdown]
# The topic has all 10,000 rows and the one record.

# %%
broker.records("orders")

# %%
spark.stop()
broker.stop()
