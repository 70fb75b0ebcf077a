"""A home of Spark for the tests' drivers, which live for seconds.

It has links to the installed PySpark, with two differences. Spark's own home has PySpark as a
zip of sources for the Python workers, and each kind of worker compiles what it imports of it, in
each driver again; here that path leads to the installed files, which are compiled once. And there
is a shared archive (JEP 350) of the classes that drivers load, which Java reads only with the same
class path. The first takes the Python workers of a driver that makes one write from 12 s of
processor time to 5 s, the second the whole driver from 19 s to 13 s.

    python -m tests.support.java.quick_spark .venv/quick-spark
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import py4j
import pyspark
from pyspark.sql import SparkSession

from spark_kafka_sink.testing import DevBroker
from tests.support.java.quick_java import writing_archive

_END_SECONDS = 240


def spark_home() -> Path:
    """Return the home of the Spark that this process and those that it starts use."""
    return Path(os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent)


def write_home(home: Path) -> None:
    """Write the home; the archive is its last file."""
    installed = Path(pyspark.__file__).parent
    for name in ("bin", "jars"):
        _link(home / name, installed / name)
    # Spark puts these paths on those of its workers, and Python takes a directory as well as a zip.
    library = home / "python" / "lib"
    _link(library / "pyspark.zip" / "pyspark", installed)
    [py4j_zip] = installed.glob("python/lib/py4j-*.zip")
    _link(library / py4j_zip.name / "py4j", Path(py4j.__file__).parent)
    os.environ["SPARK_HOME"] = str(home)
    _write_archive(home / "classes.jsa")


def _link(path: Path, target: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    path.symlink_to(target)


def _write_archive(archive: Path) -> None:
    """Run a driver that writes, reads and streams, and let it write its classes when it ends.

    The archive of a Java that writes none is empty, and ignored.
    """
    with tempfile.TemporaryDirectory(prefix="partial-", dir=archive.parent) as directory:
        partial = Path(directory, archive.name)
        os.environ["SPARK_SUBMIT_OPTS"] = " ".join(writing_archive(partial))
        builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
        builder = builder.config("spark.ui.showConsoleProgress", "false")
        spark = builder.config("spark.sql.warehouse.dir", f"{directory}/warehouse").getOrCreate()
        java = spark.sparkContext._gateway.proc
        _use(spark, directory)
        spark.stop()
        # Java ends with its standard input.
        java.stdin.close()
        code = java.wait(_END_SECONDS)
        if code != 0:
            raise RuntimeError(f"the driver that writes the archive exited with code {code}")
        partial.touch()
        partial.rename(archive)


def _use(spark: SparkSession, directory: str) -> None:
    rows = spark.range(100).selectExpr("cast(id as string) value").repartition(2)
    rows.write.text(f"{directory}/numbers")
    with DevBroker(topics={"numbers": 2}) as broker:
        options = {"kafka.bootstrap.servers": broker.bootstrap_servers}
        topic = {**options, "topic": "numbers", "report": "none"}
        rows.write.format("pykafka").mode("append").options(**topic).save()
        spark.read.format("pykafka").options(**options, subscribe="numbers").load().collect()
        stream = spark.readStream.text(f"{directory}/numbers").writeStream.format("pykafka")
        stream = stream.options(**topic, checkpointLocation=f"{directory}/checkpoint")
        stream.trigger(availableNow=True).start().awaitTermination()


if __name__ == "__main__":
    write_home(Path(sys.argv[1]).absolute())
