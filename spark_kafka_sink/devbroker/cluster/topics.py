"""The topics of a cluster, by name and by id."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_kafka_sink.devbroker.base.topic_names import collision_key

if TYPE_CHECKING:
    import uuid
    from collections.abc import Iterator

    from spark_kafka_sink.devbroker.cluster.partition import Topic


class Topics:
    """All topics; no two names differ only in dots and underscores."""

    def __init__(self) -> None:
        """Start without topics."""
        self._by_name: dict[str, Topic] = {}
        self._by_id: dict[uuid.UUID, Topic] = {}
        self._by_collision_key: dict[str, Topic] = {}

    def __iter__(self) -> Iterator[Topic]:
        """Iterate over all topics in the order of their creation."""
        return iter(self._by_name.values())

    @property
    def names(self) -> set[str]:
        """The names of all topics."""
        return set(self._by_name)

    def find(self, name: str) -> Topic | None:
        """Return the topic with this name, or None."""
        return self._by_name.get(name)

    def find_by_id(self, topic_id: uuid.UUID) -> Topic | None:
        """Return the topic with this id (KIP-516), or None."""
        return self._by_id.get(topic_id)

    def find_colliding(self, name: str) -> Topic | None:
        """Return the topic with this name, or one whose metrics would collide with it, or None."""
        return self._by_collision_key.get(collision_key(name))

    def add(self, topic: Topic) -> None:
        """Add a topic; its name must not collide with another."""
        self._by_name[topic.name] = topic
        self._by_id[topic.topic_id] = topic
        self._by_collision_key[collision_key(topic.name)] = topic

    def remove(self, topic: Topic) -> None:
        """Remove a topic, which must exist."""
        del self._by_name[topic.name]
        del self._by_id[topic.topic_id]
        del self._by_collision_key[collision_key(topic.name)]

    def clear(self) -> None:
        """Remove all topics."""
        self._by_name.clear()
        self._by_id.clear()
        self._by_collision_key.clear()
