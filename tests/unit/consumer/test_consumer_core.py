"""The parts of a consumer: the settings that they get, and what an error in one of them delays."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from spark_kafka_sink.config.consumer_config import KafkaConsumerConfig
from spark_kafka_sink.consumer.consumer_core import group_settings, member_settings
from spark_kafka_sink.consumer.threaded_core import ThreadedCore
from spark_kafka_sink.errors import ConfigError, KafkaTimeoutError, NetworkError
from spark_kafka_sink.network.exponential_backoff import NEVER, ExponentialBackoff


def config_of(**settings: object) -> KafkaConsumerConfig:
    """Return a configuration; `_` stands for a dot."""
    given = {name.replace("_", "."): value for name, value in settings.items()}
    return KafkaConsumerConfig.from_mapping({"bootstrap.servers": "localhost:9092", **given})


@pytest.mark.parametrize("settings_of", [group_settings, member_settings])
def test_members_back_off_as_the_settings_say(settings_of):
    """The delays of both protocols begin and end with the settings, in seconds."""
    config = config_of(group_id="g", retry_backoff_ms=200, retry_backoff_max_ms=3_000)
    assert ExponentialBackoff(0.2, 3.0) == settings_of(config).backoff


def test_an_error_of_one_part_does_not_delay_the_others(monkeypatch):
    """The others go on, the user's next call raises it, and the part is called again in time."""
    error = ValueError("unexpected")
    with ExitStack() as undo:
        core = ThreadedCore(config_of(reconnect_backoff_max_ms=7_000), (), undo)

        def fail(_now):
            raise error

        monkeypatch.setattr(core.topics, "advance", fail)
        monkeypatch.setattr(core.positions, "advance", lambda _now: NEVER)
        monkeypatch.setattr(core.fetcher, "advance", lambda now: now + 9)
        with core.context.lock:
            assert 107.0 == core._advance(100.0)
            with pytest.raises(ValueError, match="unexpected"):
                core.context.raise_failure()


def test_the_user_does_not_see_that_a_background_question_had_no_answer():
    """It is asked again; any other error is raised by the user's next call, once."""
    with ExitStack() as undo:
        context = ThreadedCore(config_of(), (), undo).context
        with context.lock:
            for error in (KafkaTimeoutError("late"), NetworkError("gone")):
                before = context.changes
                context.fail(error)
                assert before < context.changes
                context.raise_failure()
            context.fail(ConfigError("wrong"))
            with pytest.raises(ConfigError, match="wrong"):
                context.raise_failure()
            context.raise_failure()
