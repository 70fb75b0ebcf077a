"""The values that are encoded and decoded: orders of five fields, and records of other shapes."""

from __future__ import annotations

import json
from functools import cache
from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: About what the decoder of records puts into one batch.
BATCH_ROWS = 16_384
#: How many fields the widest record has.
MANY_FIELDS = 50
TEXT_OR_NULL = ["null", "string"]


def record(name: str, /, **fields: Any) -> dict[str, Any]:
    """Return the schema of a record with fields of these types."""
    listed = [{"name": field, "type": kind} for field, kind in fields.items()]
    return {"type": "record", "name": name, "fields": listed}


ORDER = record(
    "Order", id="long", customer="string", amount="double", paid="boolean", note=TEXT_OR_NULL
)
NESTED = record(
    "Nested",
    id="long",
    customer=record(
        "Customer", name="string", address=record("Address", street="string", zip="int")
    ),
    tags={"type": "array", "items": "string"},
    counts={"type": "map", "values": "long"},
    lines={"type": "array", "items": record("Line", article="string", price="double")},
)
#: The five types of an order, ten times.
WIDE = record(
    "Wide",
    **{
        f"{field['name']}{number}": field["type"]
        for number in range(MANY_FIELDS // len(ORDER["fields"]))
        for field in ORDER["fields"]
    },
)
#: What wrote evolved orders: other types and another order of fields, one field more, one less.
OLD_ORDER = record(
    "Order", note="string", id="int", old=TEXT_OR_NULL, amount="float", customer="string"
)
EVOLVED = ORDER | {
    "fields": [
        field | ({"default": False} if field["name"] == "paid" else {}) for field in ORDER["fields"]
    ]
}


def version_of_order(number: int) -> dict[str, Any]:
    """Return the schema of an order with `number` fields more, which readers skip."""
    more = [{"name": f"more{each}", "type": "long"} for each in range(number)]
    return ORDER | {"fields": [*ORDER["fields"], *more]}


def text(schema: dict[str, Any]) -> str:
    """Return a schema as a registry has it."""
    return json.dumps(schema)


def customers(first: int = 0) -> list[str]:
    """Return names of customers, all of the same length."""
    return [f"customer-{(first + row) * 7919 % 1_000_000:06d}" for row in range(BATCH_ROWS)]


@cache
def orders() -> pa.StructArray:
    """Return a batch of orders."""
    rows = range(BATCH_ROWS)
    return pa.StructArray.from_arrays(
        [
            pa.array(rows, pa.int64()),
            pa.array(customers()),
            pa.array([row / 4 for row in rows]),
            pa.array([row % 3 == 0 for row in rows]),
            pa.array([None if row % 2 else f"note {row:06d}" for row in rows], pa.string()),
        ],
        [field["name"] for field in ORDER["fields"]],
    )


@cache
def nested() -> pa.StructArray:
    """Return a batch of nested records, with lists of two items and maps of two entries."""
    kind = pa.struct(
        [
            ("id", pa.int64()),
            (
                "customer",
                pa.struct(
                    [
                        ("name", pa.string()),
                        ("address", pa.struct([("street", pa.string()), ("zip", pa.int32())])),
                    ]
                ),
            ),
            ("tags", pa.list_(pa.string())),
            ("counts", pa.map_(pa.string(), pa.int64())),
            ("lines", pa.list_(pa.struct([("article", pa.string()), ("price", pa.float64())]))),
        ]
    )
    names = customers()
    rows = [
        {
            "id": row,
            "customer": {"name": names[row], "address": {"street": f"street {row}", "zip": row}},
            "tags": ["new", f"tag{row % 10}"],
            "counts": [("seen", row), ("sold", row % 7)],
            "lines": [{"article": f"article-{row}", "price": row / 4}] * 2,
        }
        for row in range(BATCH_ROWS)
    ]
    return pa.array(rows, kind)


@cache
def wide() -> pa.StructArray:
    """Return a batch of records with many fields: the columns of orders, again and again."""
    names = [field["name"] for field in WIDE["fields"]]
    columns = orders().flatten()
    return pa.StructArray.from_arrays(
        [columns[number % len(columns)] for number in range(len(names))], names
    )


@cache
def old_orders() -> pa.StructArray:
    """Return a batch of orders as they were before."""
    names = [field["name"] for field in OLD_ORDER["fields"]]
    rows = range(BATCH_ROWS)
    return pa.StructArray.from_arrays(
        [
            pa.array([f"note {row:06d}" for row in rows]),
            pa.array(rows, pa.int32()),
            pa.array([None if row % 2 else f"old {row}" for row in rows], pa.string()),
            pa.array([row / 4 for row in rows], pa.float32()),
            pa.array(customers()),
        ],
        names,
    )


def versioned_orders(number: int) -> pa.StructArray:
    """Return a batch of orders with `number` fields more."""
    more = [pa.array(range(BATCH_ROWS), pa.int64())] * number
    names = [field["name"] for field in version_of_order(number)["fields"]]
    return pa.StructArray.from_arrays([*orders().flatten(), *more], names)


#: The type of orders in Spark.
SPARK_ORDER = "struct<id: bigint, customer: string, amount: double, paid: boolean, note: string>"


def spark_orders(spark: SparkSession, rows: int, partitions: int) -> DataFrame:
    """Return a DataFrame whose values are orders."""
    return spark.range(0, rows, numPartitions=partitions).selectExpr(
        """struct(
            id,
            concat('customer-', lpad(cast(id * 7919 % 1000000 as string), 6, '0')) as customer,
            id / 4.0D as amount,
            id % 3 = 0 as paid,
            if(id % 2 = 1, null, concat('note ', lpad(cast(id as string), 6, '0'))) as note
        ) as value"""
    )
