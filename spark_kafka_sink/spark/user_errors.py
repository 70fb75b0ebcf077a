"""How a KafkaError leaves the package for Spark: one sentence in the user's words, and no frames.

Spark shows users the whole traceback of a Python worker, several times, and the sentence that they
need comes last. So an error is changed at the border, where Spark calls the package:

- Settings have the names that options have: `kafka.max.request.size`.
- In a task, rows are those of the task: "row 1 of task 3".
- What is in quotes, such as the name of a topic, is the user's own and stays as it is.
- The traceback is empty, and the worker is asked not to print its own frames either. That is the
  environment variable that Spark sets for `spark.sql.execution.pyspark.udf.hideTraceback.enabled`.
  It is set when the worker is about to report the error; every such worker ends right afterwards,
  so no other error loses its traceback.

What may be a bug, of this package or of a user's code that it calls, keeps its causes and their
tracebacks: a KafkaError without a class of its own, one that a user's function caused, one whose
causes are other than errors of Kafka and of the operating system, and all that is no KafkaError.
For such a KafkaError, the worker is asked not to simplify the traceback, since PySpark removes the
cause of a simplified one.
"""

from __future__ import annotations

import functools
import os
import re
from typing import TYPE_CHECKING, Final, ParamSpec, TypeVar

from pyspark.taskcontext import TaskContext

from spark_kafka_sink.config.consumer_config import CONSUMER_CONFIG_DEF
from spark_kafka_sink.config.producer_config import PRODUCER_CONFIG_DEF
from spark_kafka_sink.errors import ConfigError, KafkaError, SchemaError

if TYPE_CHECKING:
    from collections.abc import Callable

P = ParamSpec("P")
T = TypeVar("T")
ErrorT = TypeVar("ErrorT", bound=KafkaError)

HIDE_TRACEBACK: Final = "SPARK_HIDE_TRACEBACK"
#: Spark sets it for `spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled`, its default.
SIMPLIFIED_TRACEBACK: Final = "SPARK_SIMPLIFIED_TRACEBACK"
#: The beginning of the variables with which Spark tells a Python worker where to connect.
_WORKER_VARIABLES: Final = ("PYTHON_WORKER_FACTORY_", "PYTHON_UNIX_DOMAIN_")
_NAMES: Final = "|".join(
    # A name without a dot may be a word of the sentence, unless a value follows it.
    re.escape(name) + ("" if "." in name else "(?==)")
    for name in sorted({*PRODUCER_CONFIG_DEF.names, *CONSUMER_CONFIG_DEF.names}, reverse=True)
)
#: A text in quotes. The quote of "topic's" or "brokers'" follows a letter, and so it opens nothing;
#: that of "it's" comes before a letter, and so it closes nothing.
_QUOTED: Final = "|".join(
    rf"(?<![^\s(\[{{=:,])b?{quote}(?:\\.|[^\\{quote}]|{quote}(?=\w))*{quote}(?!\w)"
    for quote in "'\""
)
#: A setting of the client, not one of a topic or broker, and not a part of a longer name or path.
_SETTING: Final = re.compile(
    rf"{_QUOTED}|"
    rf"(?<![\w.'\"/\\-])(?<!topic's )(?<!broker's )(?<!brokers' )({_NAMES})(?![\w/-]|\.\w)",
    re.DOTALL,
)
_ROW: Final = re.compile(rf"{_QUOTED}|\b(row \d+|rows \d+ to \d+)\b(?! of task)", re.DOTALL)


def in_words_of_options(text: str) -> str:
    """Return a message in which the client's settings have the names of options.

    >>> in_words_of_options("Raise max.request.size (and the topic's max.message.bytes)")
    "Raise kafka.max.request.size (and the topic's max.message.bytes)"
    """
    return _SETTING.sub(lambda match: f"kafka.{match[1]}" if match[1] else match[0], text)


def with_task(text: str, task: int) -> str:
    """Return a message in which rows are those of a task.

    >>> with_task("row 1, topic 'orders': the timestamp is before 1970", 3)
    "row 1 of task 3, topic 'orders': the timestamp is before 1970"
    """
    return _ROW.sub(lambda match: f"{match[1]} of task {task}" if match[1] else match[0], text)


def reworded(error: ErrorT) -> ErrorT:
    """Change the message of an error into the user's words, and return the error."""
    if error.args:
        text = in_words_of_options(str(error.args[0]))
        context = TaskContext.get()
        if context is not None:
            text = with_task(text, context.partitionId())
        error.args = (text, *error.args[1:])
    return error


def for_user(error: ErrorT) -> ErrorT:
    """Prepare an error that is raised to Spark `from error.__cause__`, and return it.

    It has no cause and no frames any more, unless it may be a bug.
    """
    reworded(error)
    is_worker = any(name.startswith(_WORKER_VARIABLES) for name in os.environ)
    if may_be_bug(error):
        if is_worker:
            os.environ.pop(SIMPLIFIED_TRACEBACK, None)
        return error
    if is_worker:
        os.environ[HIDE_TRACEBACK] = "1"
    error.__cause__ = None
    return error.with_traceback(None)


def may_be_bug(error: KafkaError) -> bool:
    """Return whether its traceback may be needed.

    >>> may_be_bug(ConfigError("acks must be all, 0 or 1")), may_be_bug(KafkaError("it failed"))
    (False, True)
    """
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, (ConfigError, SchemaError)):
            return False  # whatever caused it: its sentence says what to change
        if isinstance(cause, KafkaError):
            if type(cause) is KafkaError or cause.is_from_user_code:
                return True
        # Not an Exception: an interrupt, or the cancellation of a wait that a TimeoutError ended.
        elif isinstance(cause, Exception) and not isinstance(cause, (OSError, EOFError)):
            return True
        cause = cause.__cause__
    return False


def raising_for_user(method: Callable[P, T]) -> Callable[P, T]:
    """Raise the KafkaErrors of a method that Spark calls in the user's words (a decorator)."""

    @functools.wraps(method)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return method(*args, **kwargs)
        except KafkaError as error:
            raise for_user(error) from error.__cause__

    return wrapped
