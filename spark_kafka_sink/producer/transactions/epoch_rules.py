"""Which transaction protocol applies, and whether the next transaction needs a new epoch.

Up to transaction.version 1 (TV1) a separate request adds partitions to a transaction; from 2 on
(TV2, KIP-890) Produce does so itself, and each EndTxn returns a new epoch. The version is checked
between transactions, so that a transaction ends by the rules under which it began.

Unlike Java, whether the next transaction needs a new epoch is decided when the old one has ended,
not when its end is requested: batches may fail in between.
"""

from __future__ import annotations

#: The first InitProducerId version that can bump the epoch of its producer (KIP-360).
FIRST_VERSION_WITH_EPOCH_BUMP = 3
TRANSACTION_V2 = 2


class EpochRules:
    """What the coordinator supports, and what the open transaction requires of the next one."""

    def __init__(self) -> None:
        """Start with the oldest protocol, until the coordinator's features are known."""
        self._coordinator_bumps_epochs = False
        self._is_transaction_v2 = False
        self._next_is_transaction_v2 = False
        self._bump_required = False

    @property
    def is_transaction_v2(self) -> bool:
        """Whether the open transaction, or the next, follows the rules of KIP-890."""
        return self._is_transaction_v2

    @property
    def transaction_version(self) -> int:
        """The transaction.version of the open transaction; 1 includes older clusters."""
        return TRANSACTION_V2 if self._is_transaction_v2 else TRANSACTION_V2 - 1

    @property
    def coordinator_bumps_epochs(self) -> bool:
        """Whether a new epoch can be requested."""
        return self._coordinator_bumps_epochs

    @property
    def can_renew_epoch(self) -> bool:
        """Whether the numbers can restart: EndTxn returns a new epoch, or one can be requested."""
        return self._coordinator_bumps_epochs or self._is_transaction_v2

    @property
    def next_needs_epoch(self) -> bool:
        """Whether a new epoch must be requested before the next transaction."""
        # Partitions of the last transaction must not count as added to the next one (KIP-890).
        is_upgraded = self._next_is_transaction_v2 and not self._is_transaction_v2
        return self._bump_required or is_upgraded

    def update_features(self, *, init_producer_id_version: int, transaction_version: int) -> None:
        """Update what the coordinator supports; the open transaction keeps its rules."""
        self._coordinator_bumps_epochs = init_producer_id_version >= FIRST_VERSION_WITH_EPOCH_BUMP
        self._next_is_transaction_v2 = transaction_version >= TRANSACTION_V2

    def require_bump(self) -> None:
        """Require a new epoch for the next transaction."""
        self._bump_required = True

    def require_bump_after_failure(self) -> None:
        """Require a new epoch for the next transaction; under TV2 every transaction has one."""
        self._bump_required = self._bump_required or not self._is_transaction_v2

    def bump_requested(self) -> None:
        """Record that the required epoch, if any, has been requested."""
        self._bump_required = False

    def adopt_version(self) -> None:
        """Make the next transaction follow the rules that the coordinator supports now."""
        self._is_transaction_v2 = self._next_is_transaction_v2
