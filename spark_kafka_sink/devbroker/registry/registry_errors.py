"""The errors of a Schema Registry, as clients see them: code, message, and status of HTTP.

Codes and fixed messages are Confluent's, which clients and tools compare. A code of five digits
begins with its status.
"""

from __future__ import annotations

import enum
from typing import Final

from spark_kafka_sink.errors import KafkaError

#: A greater code begins with the status.
_MAX_STATUS: Final = 999
_DELETE_PERMANENTLY: Final = "Set permanent=true to delete permanently"
_DELETE_FIRST: Final = "was not deleted first before being permanently deleted"
_NOT_CONFIGURED: Final = "Subject '{}' does not have subject-level"
_INCOMPATIBLE: Final = (
    'Schema being registered is incompatible with an earlier schema for subject "{}", details: [{}]'
)
_INVALID_VERSION: Final = (
    "The specified version '{}' is not a valid version id. Allowed values are between "
    '[1, 2^31-1] and the string "latest"'
)
_INVALID_LEVEL: Final = (
    "Invalid compatibility level. Valid values are none, backward, forward, full, "
    "backward_transitive, forward_transitive, and full_transitive"
)
_REFERENCE_EXISTS: Final = (
    "One or more references exist to the schema {{magic=1,keytype=SCHEMA,subject={},version={}}}."
)


class RegistryError(KafkaError):
    """A rejection of a request, with an error code of Confluent's registry."""

    def __init__(self, error_code: int, message: str) -> None:
        super().__init__(message)
        self.error_code = error_code
        self.message = message

    @property
    def status(self) -> int:
        """The status of the response."""
        return self.error_code if self.error_code <= _MAX_STATUS else self.error_code // 100


class RegistryErrorCode(enum.Enum):
    """An error code with the format of its message."""

    SUBJECT_NOT_FOUND = 40401, "Subject '{}' not found."
    VERSION_NOT_FOUND = 40402, "Version {} not found."
    SCHEMA_NOT_FOUND = 40403, "Schema not found"
    SCHEMA_ID_NOT_FOUND = 40403, "Schema {} not found"
    SUBJECT_SOFT_DELETED = 40404, f"Subject '{{}}' was soft deleted.{_DELETE_PERMANENTLY}"
    SUBJECT_NOT_SOFT_DELETED = 40405, f"Subject '{{}}' {_DELETE_FIRST}"
    VERSION_SOFT_DELETED = (
        40406,
        f"Subject '{{}}' Version {{}} was soft deleted.{_DELETE_PERMANENTLY}",
    )
    VERSION_NOT_SOFT_DELETED = 40407, f"Subject '{{}}' Version {{}} {_DELETE_FIRST}"
    COMPATIBILITY_NOT_CONFIGURED = 40408, f"{_NOT_CONFIGURED} compatibility configured"
    MODE_NOT_CONFIGURED = 40409, f"{_NOT_CONFIGURED} mode configured"
    INCOMPATIBLE_SCHEMA = 40901, _INCOMPATIBLE
    INVALID_SCHEMA = 42201, "{}"
    INVALID_VERSION = 42202, _INVALID_VERSION
    INVALID_COMPATIBILITY_LEVEL = 42203, _INVALID_LEVEL
    INVALID_MODE = 42204, "Invalid mode. Valid values are READWRITE, READONLY, IMPORT and FORWARD."
    OPERATION_NOT_PERMITTED = 42205, "{}"
    REFERENCE_EXISTS = 42206, _REFERENCE_EXISTS
    INVALID_SUBJECT = 42208, "The specified subject '{}' is not a valid."
    SCHEMA_TOO_LARGE = 42209, "Register operation failed because schema is too large"
    INVALID_RULE_SET = 42210, "{}"
    STORE_ERROR = 50001, "{}"

    def error(self, *values: object) -> RegistryError:
        """Return the error with values for the places of its message."""
        error_code, message = self.value
        return RegistryError(error_code, message.format(*values))
