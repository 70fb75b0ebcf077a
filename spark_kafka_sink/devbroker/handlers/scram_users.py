"""Users of SCRAM: DescribeUserScramCredentials and AlterUserScramCredentials (KIP-554).

They are in addition to the users of a listener's settings, which are not listed. A user that is in
both logs in with the password that was set here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

from spark_kafka_sink.devbroker.base.refusal import RefusedError
from spark_kafka_sink.devbroker.base.scram_credential import ScramCredential
from spark_kafka_sink.devbroker.handlers.handler import RequestContext, handles
from spark_kafka_sink.protocol.error_codes import ErrorCode
from spark_kafka_sink.protocol.messages import alter_user_scram_credentials as altered
from spark_kafka_sink.protocol.messages import describe_user_scram_credentials as described
from spark_kafka_sink.security.sasl import SaslMechanism
from spark_kafka_sink.security.scram import MIN_ITERATIONS

if TYPE_CHECKING:
    from collections.abc import Iterable

    _Item: TypeAlias = altered.ScramCredentialDeletion | altered.ScramCredentialUpsertion

#: The mechanisms by their numbers in Kafka's ScramMechanism.
_MECHANISMS: Final = {1: SaslMechanism.SCRAM_SHA_256, 2: SaslMechanism.SCRAM_SHA_512}
#: As ScramControlManager.MAX_ITERATIONS.
_MAX_ITERATIONS: Final = 16_384


@handles(described.DescribeUserScramCredentialsRequest)
def describe_user_scram_credentials(
    context: RequestContext, request: described.DescribeUserScramCredentialsRequest
) -> described.DescribeUserScramCredentialsResponse:
    """Describe users, or all users (DescribeUserScramCredentials 0).

    A user that does not exist gets RESOURCE_NOT_FOUND, one that occurs twice DUPLICATE_RESOURCE.
    """
    names = [user.name for user in request.users or ()]
    known = sorted({user for user, _ in context.cluster.scram_users})

    def describe(user: str) -> described.DescribeUserScramCredentialsResult:
        if names.count(user) > 1:
            raise RefusedError(
                ErrorCode.DUPLICATE_RESOURCE,
                "Cannot describe SCRAM credentials for the same user twice in a single request: "
                f"{user}",
            )
        if user not in known:
            raise RefusedError(
                ErrorCode.RESOURCE_NOT_FOUND,
                f"Attempt to describe a user credential that does not exist: {user}",
            )
        credentials = (
            (number, context.cluster.scram_users.get((user, mechanism)))
            for number, mechanism in _MECHANISMS.items()
        )
        return described.DescribeUserScramCredentialsResult(
            user=user,
            credential_infos=tuple(
                described.CredentialInfo(mechanism=number, iterations=credential.iterations)
                for number, credential in credentials
                if credential is not None
            ),
        )

    return described.DescribeUserScramCredentialsResponse(
        results=context.each_result(
            described.DescribeUserScramCredentialsResult, "user", names or known, describe
        )
    )


def _items(request: altered.AlterUserScramCredentialsRequest) -> list[_Item]:
    return [*request.deletions, *request.upsertions]


def _failed(
    _context: RequestContext,
    request: altered.AlterUserScramCredentialsRequest,
    error_code: ErrorCode,
    message: str,
) -> altered.AlterUserScramCredentialsResponse:
    """Return a response with the error for each user."""
    users = dict.fromkeys(item.name for item in _items(request))
    return _response((user, RefusedError(error_code, message)) for user in users)


def _response(
    results: Iterable[tuple[str, RefusedError | None]],
) -> altered.AlterUserScramCredentialsResponse:
    return altered.AlterUserScramCredentialsResponse(
        results=tuple(
            altered.AlterUserScramCredentialsResult(
                user=user,
                error_code=ErrorCode.NONE if refused is None else refused.error_code,
                error_message=None if refused is None else refused.message,
            )
            for user, refused in results
        )
    )


@handles(altered.AlterUserScramCredentialsRequest, error_response=_failed)
def alter_user_scram_credentials(
    context: RequestContext, request: altered.AlterUserScramCredentialsRequest
) -> altered.AlterUserScramCredentialsResponse:
    """Create, change and delete users, each by itself (AlterUserScramCredentials 0).

    - UNACCEPTABLE_CREDENTIAL: an empty name, or a number of iterations that is not between 4,096
      and 16,384.
    - UNSUPPORTED_SASL_MECHANISM: an unknown mechanism.
    - RESOURCE_NOT_FOUND: a deletion of what does not exist.
    - DUPLICATE_RESOURCE: a user that occurs twice, with whatever mechanism.

    All changes are written to disk at once; if that fails, nothing has changed and each user gets
    KAFKA_STORAGE_ERROR. Sessions of users that have been changed continue.
    """
    changes: dict[str, tuple[SaslMechanism, ScramCredential | None]] = {}
    problems: dict[str, RefusedError] = {}
    for item in _items(request):
        if item.name in problems:
            continue
        if changes.pop(item.name, None) is not None:
            problems[item.name] = RefusedError(
                ErrorCode.DUPLICATE_RESOURCE,
                "A user credential cannot be altered twice in the same request",
            )
            continue
        try:
            changes[item.name] = _change(context, item)
        except RefusedError as refused:
            problems[item.name] = refused
    users = dict(context.cluster.scram_users)
    for user, (mechanism, credential) in changes.items():
        if credential is None:
            del users[user, mechanism]
        else:
            users[user, mechanism] = credential
    if changes:
        context.cluster.change_scram_users(users)
    return _response([*((user, None) for user in changes), *problems.items()])


def _change(
    context: RequestContext,
    item: _Item,
) -> tuple[SaslMechanism, ScramCredential | None]:
    """Return what a change leads to; None deletes. Raises RefusedError."""
    if not item.name:
        raise RefusedError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Username must not be empty")
    mechanism = _MECHANISMS.get(item.mechanism)
    if mechanism is None:
        raise RefusedError(ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism")
    if isinstance(item, altered.ScramCredentialDeletion):
        if (item.name, mechanism) not in context.cluster.scram_users:
            raise RefusedError(
                ErrorCode.RESOURCE_NOT_FOUND,
                "Attempt to delete a user credential that does not exist",
            )
        return mechanism, None
    if item.iterations < MIN_ITERATIONS:
        raise RefusedError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too few iterations")
    if item.iterations > _MAX_ITERATIONS:
        raise RefusedError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too many iterations")
    return mechanism, ScramCredential.of_salted_password(
        mechanism,
        bytes(item.salted_password),
        salt=bytes(item.salt),
        iterations=item.iterations,
    )
