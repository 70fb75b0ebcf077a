"""One story of requests to a Schema Registry, and what registries answer.

A transcript has a line for each request: the status, the error code if there is one, and the parts
of the body that every registry must have; of a schema only the names of its fields. Ids are
replaced by numbers in the order in which they first appear, since a registry may count them as it
likes, and lists are sorted. Messages have no place in it.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tests.support.devbroker.registry_calls import Answer, record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

V1 = record("id:long")
V2 = record("id:long", 'note:string=""')
INCOMPATIBLE = record("id:long", "price:double")
CUSTOMER = record("name:string", name="shop.Customer")
ORDER = record("customer:shop.Customer", name="shop.Order")
REFERENCE = {"name": "shop.Customer", "subject": "customer", "version": 1}
NODE = '{"type":"record","name":"Node","fields":[{"name":"next","type":["null","Node"]}]}'
#: The names in bodies whose values are ids.
_IDS = ("id",)
#: What a transcript keeps of a body that is an object.
_KEPT = (
    "error_code",
    "subject",
    "version",
    "id",
    "schema",
    "references",
    "is_compatible",
    "compatibility",
    "compatibilityLevel",
    "mode",
)
#: `{1}` in a request stands for the first id that has appeared.
STORY: tuple[tuple[str, Any], ...] = (
    ("GET /subjects", None),
    ("GET /config", None),
    ("GET /mode", None),
    ("GET /subjects/orders/versions", None),
    ("GET /subjects/orders/versions/latest", None),
    ("POST /subjects/orders", {"schema": V1}),
    ("POST /subjects/orders/versions", {"schema": V1}),
    ("POST /subjects/orders/versions", {"schema": V1}),
    ("POST /subjects/returns/versions", {"schema": V1}),
    ("GET /subjects", None),
    ("GET /subjects/orders/versions", None),
    ("GET /subjects/orders/versions/1", None),
    ("GET /subjects/orders/versions/latest", None),
    ("GET /subjects/orders/versions/2", None),
    ("GET /subjects/orders/versions/0", None),
    ("GET /subjects/orders/versions/first", None),
    ("GET /schemas/ids/{1}", None),
    ("GET /schemas/ids/{1}/versions", None),
    ("GET /schemas/ids/1000000", None),
    ("POST /subjects/orders", {"schema": V1}),
    ("POST /subjects/orders", {"schema": V2}),
    ("POST /subjects/none", {"schema": V1}),
    ("POST /subjects/orders/versions", {"schema": "{"}),
    ("POST /subjects/orders/versions", {"schema": '{"type":"record"}'}),
    ("PUT /config/orders", {"compatibility": "BACKWARD"}),
    ("GET /config/orders", None),
    ("PUT /config/orders", {"compatibility": "SOMETIMES"}),
    ("POST /compatibility/subjects/orders/versions/latest", {"schema": V2}),
    ("POST /compatibility/subjects/orders/versions/latest", {"schema": INCOMPATIBLE}),
    ("POST /compatibility/subjects/orders/versions/1", {"schema": INCOMPATIBLE}),
    ("POST /compatibility/subjects/orders/versions/9", {"schema": V2}),
    ("POST /subjects/orders/versions", {"schema": INCOMPATIBLE}),
    ("POST /subjects/orders/versions", {"schema": V2}),
    ("GET /subjects/orders/versions", None),
    ("GET /subjects/orders/versions/latest", None),
    ("PUT /config/orders", {"compatibility": "NONE"}),
    ("POST /subjects/orders/versions", {"schema": INCOMPATIBLE}),
    ("DELETE /config/orders", None),
    ("GET /config/orders", None),
    ("PUT /config", {"compatibility": "FULL"}),
    ("GET /config", None),
    ("PUT /config", {"compatibility": "NONE"}),
    ("POST /subjects/customer/versions", {"schema": CUSTOMER}),
    ("POST /subjects/shop/versions", {"schema": ORDER, "references": [REFERENCE]}),
    ("GET /subjects/shop/versions/1", None),
    ("GET /subjects/customer/versions/1/referencedby", None),
    ("POST /subjects/broken/versions", {"schema": ORDER}),
    (
        "POST /subjects/broken/versions",
        {"schema": ORDER, "references": [{**REFERENCE, "version": 7}]},
    ),
    ("POST /subjects/nodes/versions", {"schema": NODE}),
    ("GET /subjects/nodes/versions/1", None),
    ("DELETE /subjects/orders/versions/1?permanent=true", None),
    ("DELETE /subjects/orders/versions/1", None),
    ("DELETE /subjects/orders/versions/1", None),
    ("GET /subjects/orders/versions", None),
    ("GET /subjects/orders/versions?deleted=true", None),
    ("GET /subjects/orders/versions/1", None),
    ("GET /schemas/ids/{1}", None),
    ("DELETE /subjects/orders/versions/1?permanent=true", None),
    ("DELETE /subjects/orders/versions/1?permanent=true", None),
    ("DELETE /subjects/returns?permanent=true", None),
    ("DELETE /subjects/returns", None),
    ("DELETE /subjects/returns", None),
    ("GET /subjects", None),
    ("GET /subjects?deleted=true", None),
    ("GET /subjects/returns/versions", None),
    ("DELETE /subjects/returns?permanent=true", None),
    ("DELETE /subjects/returns?permanent=true", None),
    ("DELETE /subjects/none", None),
    ("DELETE /subjects/none/versions/1", None),
    ("POST /subjects/returns/versions", {"schema": V1}),
    ("GET /subjects/returns/versions/latest", None),
    ("POST /subjects/returns/versions", {}),
    ("POST /subjects/returns/versions", {"schema": json.dumps(json.loads(V1), indent=2)}),
    ("GET /nothing", None),
)


def transcript(ask: Callable[[str, Any], Answer]) -> list[str]:
    """Put the questions of the story, and return what is comparable of the answers."""
    ids: list[int] = []
    lines = []
    for line, body in STORY:
        # No other id is known where one is named.
        answer = ask(line.replace("{1}", str(ids[0] if ids else 0)), body)
        for found in _ids_in(answer.body):
            if found not in ids:
                ids.append(found)
        kept = _comparable(answer.body, ids)
        if line.startswith("POST") and line.endswith("/versions") and "id" in kept:
            # Only since Confluent's 8.0 there is more.
            kept = {"id": kept["id"]}
        lines.append(f"{line}: {answer.status} {json.dumps(kept)}")
    return lines


def _ids_in(value: Any) -> Iterator[int]:
    if isinstance(value, dict):
        yield from (value[name] for name in _IDS if isinstance(value.get(name), int))


def _comparable(value: Any, ids: list[int]) -> Any:
    if isinstance(value, list):
        return sorted((_comparable(item, ids) for item in value), key=json.dumps)
    if not isinstance(value, dict):
        return value
    kept = {name: value[name] for name in _KEPT if value.get(name) not in (None, [])}
    for name in _IDS:
        if name in kept:
            kept[name] = ids.index(kept[name]) + 1
    if "schema" in kept:
        kept["schema"] = [field["name"] for field in json.loads(kept["schema"])["fields"]]
    return kept
