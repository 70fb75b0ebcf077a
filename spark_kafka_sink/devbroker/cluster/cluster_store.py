"""What a cluster stores once for all of its brokers: its id, ACLs, users and quotas.

It is in `cluster.json` with a data directory, otherwise only in memory. The topics of a broker that
is alone are there as well; brokers that replicate have theirs in the metadata log.
"""

from __future__ import annotations

import base64
import uuid
from dataclasses import replace
from typing import TYPE_CHECKING

from spark_kafka_sink.devbroker.base.authorizer import Acl, Authorizer
from spark_kafka_sink.devbroker.base.refusal import RefusedError, refused_if_disk_fails
from spark_kafka_sink.devbroker.log.data_directory import StoredCluster
from spark_kafka_sink.errors import ConfigError
from spark_kafka_sink.protocol.error_codes import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from spark_kafka_sink.devbroker.base.broker_settings import BrokerSettings
    from spark_kafka_sink.devbroker.base.client_quotas import Quotas
    from spark_kafka_sink.devbroker.base.scram_credential import ScramCredential
    from spark_kafka_sink.devbroker.log.data_directory import DataDirectory
    from spark_kafka_sink.security.sasl import SaslMechanism


def _authorizer(settings: BrokerSettings) -> Authorizer | None:
    """Return the authorizer that the settings ask for. Raises ConfigError."""
    if settings.authorizer:
        return Authorizer(
            settings.super_users,
            allow_everyone_if_no_acl_found=settings.allow_everyone_if_no_acl_found,
        )
    if settings.super_users or settings.allow_everyone_if_no_acl_found:
        raise ConfigError(
            "super_users and allow_everyone_if_no_acl_found have no effect without an authorizer: "
            "set authorizer=True"
        )
    return None


class ClusterStore:
    """Stores what changes, before it takes effect."""

    def __init__(self, settings: BrokerSettings, cluster_id: str | None = None) -> None:
        """Begin with a cluster of this id, by default a new one. Raises ConfigError."""
        #: Where it is stored, while the directory is open.
        self.data: DataDirectory | None = None
        self.stored = StoredCluster(
            cluster_id=cluster_id or base64.urlsafe_b64encode(uuid.uuid4().bytes)[:22].decode()
        )
        #: Decides who may do what; None if everyone may do everything.
        self.authorizer = _authorizer(settings)

    def load(self, stored: StoredCluster) -> None:
        """Continue with what is stored."""
        self.stored = stored
        if self.authorizer is not None:
            self.authorizer.replace(stored.acls)

    def write(self, stored: StoredCluster, what: str) -> None:
        """Store a changed cluster.

        Raises RefusedError with KAFKA_STORAGE_ERROR; then nothing has changed.
        """
        if self.data is not None:
            with refused_if_disk_fails(f"{what} cannot be stored"):
                self.data.write_cluster(stored)
        self.stored = stored

    def change_acls(self, acls: Iterable[Acl]) -> None:
        """Store and apply all ACLs.

        Raises RefusedError with SECURITY_DISABLED without an authorizer, or as `write`.
        """
        if self.authorizer is None:
            raise RefusedError(ErrorCode.SECURITY_DISABLED, "No Authorizer is configured.")
        changed = tuple(dict.fromkeys(acls))
        self.write(replace(self.stored, acls=changed), "the ACLs of the cluster")
        self.authorizer.replace(changed)

    def change_scram_users(
        self, users: Mapping[tuple[str, SaslMechanism], ScramCredential]
    ) -> None:
        """Store and apply all users of SCRAM. Raises RefusedError as `write`."""
        self.write(replace(self.stored, scram_users=users), "the users of the cluster")

    def change_client_quotas(self, quotas: Quotas) -> None:
        """Store and apply all quotas. Raises RefusedError as `write`."""
        self.write(replace(self.stored, client_quotas=quotas), "the quotas of the cluster")
