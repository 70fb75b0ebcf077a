"""Generated ACLs, with questions about them, and what Kafka's StandardAuthorizer answers.

A case is a cluster with its ACLs, and questions: may this client do that with this resource, may it
do that with any resource, and which ACLs does this filter find? A case follows from its number.
The answers of Kafka 4.3.1 are in `standard_authorizer.txt`. Run by hand, with the jars of Kafka:

    python -m tests.support.devbroker.acl_cases DIRECTORY-OF-KAFKA-JARS
"""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from spark_kafka_sink.devbroker.base.authorizer import (
    CLUSTER_NAME,
    Acl,
    AclFilter,
    Authorizer,
    Client,
)
from spark_kafka_sink.protocol.acl_codes import (
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)
from tests.support.java.quick_java import QUICK_OPTIONS
from tests.support.kafka.kafka_files import java_command

GOLDEN = Path(__file__).parents[2] / "unit" / "devbroker" / "base" / "golden"
ANSWERS = GOLDEN / "standard_authorizer.txt"
CASES = 150
_ORACLE = Path(__file__).with_name("AuthorizerOracle.java")
_TYPES = (
    ResourceType.TOPIC,
    ResourceType.GROUP,
    ResourceType.CLUSTER,
    ResourceType.TRANSACTIONAL_ID,
)
_NAMES = ("a", "ab", "abc", "abx", "b", "ba")
_PRINCIPALS = ("User:alice", "User:bob", "User:ANONYMOUS", "Group:alice")
_HOSTS = ("127.0.0.1", "10.0.0.7")
_OPERATIONS = tuple(operation for operation in AclOperation if operation > AclOperation.ALL)


class Question(NamedTuple):
    """A question of one of the three kinds, as the oracle reads it."""

    words: tuple[str, ...]

    def answer(self, authorizer: Authorizer) -> str:
        """Return the embedded broker's answer."""
        kind, *words = self.words
        if kind == "find":
            return "".join(str(int(_filter(words).matches(acl))) for acl in authorizer.acls)
        principal, host, operation, resource_type, *name = words
        client, wanted = Client(principal, host), AclOperation[operation]
        if kind == "any":
            return str(int(authorizer.may_use_any(client, wanted, ResourceType[resource_type])))
        return str(int(authorizer.allows(client, wanted, ResourceType[resource_type], name[0])))


class Case(NamedTuple):
    """A cluster's settings and ACLs, and the questions."""

    super_users: tuple[str, ...]
    is_open: bool
    acls: tuple[Acl, ...]
    questions: tuple[Question, ...]

    def answers(self) -> list[str]:
        """Return the embedded broker's answers."""
        authorizer = Authorizer(self.super_users, allow_everyone_if_no_acl_found=self.is_open)
        authorizer.replace(self.acls)
        return [question.answer(authorizer) for question in self.questions]

    def lines(self) -> list[str]:
        """Return the case as the oracle reads it."""
        lines = ["\t".join(("new", ";".join(self.super_users), str(self.is_open).lower()))]
        lines += ["\t".join(("acl", *_words(acl))) for acl in self.acls]
        return lines + ["\t".join(question.words) for question in self.questions]


def case(number: int) -> Case:
    """Return the case of a number."""
    chance = random.Random(number)
    # Few types and principals, so that several ACLs apply to the same request.
    types = chance.sample(_TYPES, 2)
    acls = tuple(dict.fromkeys(_acl(chance, types) for _ in range(chance.randrange(9))))
    return Case(
        super_users=("User:bob",) if chance.random() < 0.2 else (),
        is_open=chance.random() < 0.4,
        acls=acls,
        questions=tuple(_question(chance, types) for _ in range(24)),
    )


def _acl(chance: random.Random, types: list[ResourceType]) -> Acl:
    resource_type = chance.choice(types)
    prefixed = chance.random() < 0.4 and resource_type is not ResourceType.CLUSTER
    return Acl(
        resource_type=resource_type,
        name=_name(chance, resource_type, "" if prefixed else "*"),
        pattern_type=ResourcePatternType.PREFIXED if prefixed else ResourcePatternType.LITERAL,
        principal=chance.choice((*_PRINCIPALS, "User:*")),
        host=chance.choice((*_HOSTS, "*", "*")),
        operation=chance.choice((*_OPERATIONS, *(AclOperation.ALL,) * 4)),
        permission_type=AclPermissionType.ALLOW
        if chance.random() < 0.7
        else AclPermissionType.DENY,
    )


def _name(chance: random.Random, resource_type: ResourceType, also: str = "") -> str:
    if resource_type is ResourceType.CLUSTER:
        return CLUSTER_NAME
    return chance.choice((*_NAMES, also) if also else _NAMES)


def _question(chance: random.Random, types: list[ResourceType]) -> Question:
    kind = chance.choice(("may", "may", "may", "any", "find"))
    if kind == "find":
        acl = _acl(chance, types)
        pattern_type = chance.choice((*ResourcePatternType,)[1:]).name
        words = _words(acl)
        for index, nothing in ((0, "ANY"), (1, "-"), (3, "-"), (4, "-"), (5, "ANY"), (6, "ANY")):
            if chance.random() < 0.7:
                words[index] = nothing
        words[2] = pattern_type
        return Question((kind, *words))
    resource_type = chance.choice(types)
    words = [
        chance.choice(_PRINCIPALS),
        chance.choice(_HOSTS),
        chance.choice(_OPERATIONS).name,
        resource_type.name,
    ]
    if kind == "may":
        words.append(_name(chance, resource_type))
    return Question((kind, *words))


def _words(acl: Acl) -> list[str]:
    return [value if isinstance(value, str) else value.name for value in acl]


def _filter(words: list[str]) -> AclFilter:
    texts = [None if word == "-" else word for word in words]
    return AclFilter(
        resource_type=ResourceType[words[0]],
        name=texts[1],
        pattern_type=ResourcePatternType[words[2]],
        principal=texts[3],
        host=texts[4],
        operation=AclOperation[words[5]],
        permission_type=AclPermissionType[words[6]],
    )


def main(directory: str) -> None:
    """Write Kafka's answers: a line for each case."""
    cases = [case(number) for number in range(CASES)]
    command = [java_command(), *QUICK_OPTIONS, "-cp", f"{directory}/*", str(_ORACLE)]
    done = subprocess.run(  # noqa: S603 - our own command
        command,
        input="".join(f"{line}\n" for each in cases for line in each.lines()),
        capture_output=True,
        encoding="utf-8",
        timeout=600,
        check=True,
    )
    answers = iter(done.stdout.splitlines())
    lines = [" ".join(next(answers) or "-" for _ in each.questions) for each in cases]
    ANSWERS.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
