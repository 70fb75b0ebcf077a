"""BrokerRegistration: a broker that has started makes itself known to the controller (KIP-631).

Version 2 names the broker's log directories (KIP-858), version 3 the epoch that it had before a
clean shutdown (KIP-966), version 4 also features whose lowest level is 0.
"""

from __future__ import annotations

from spark_kafka_sink.protocol.schema import *


@message
class Listener:
    """An address of the broker."""

    name: str = field(STRING)
    host: str = field(STRING)
    port: int = field(UINT16)
    security_protocol: int = field(INT16)


@message
class Feature:
    """The levels of a feature that the broker supports."""

    name: str = field(STRING)
    min_supported_version: int = field(INT16)
    max_supported_version: int = field(INT16)


@message
class BrokerRegistrationRequest(ApiRequest["BrokerRegistrationResponse"]):
    """A request for the controller."""

    api_key = ApiKey.BROKER_REGISTRATION
    versions = VersionRange(0, 4)

    broker_id: int = field(INT32)
    cluster_id: str = field(STRING)
    #: Chosen by the process of the broker when it starts.
    incarnation_id: Uuid = field(UUID)
    listeners: tuple[Listener, ...] = field(array(Listener))
    features: tuple[Feature, ...] = field(array(Feature), default=())
    rack: str | None = field(STRING, nullable="0+", default=None)
    is_migrating_zk_broker: bool = field(BOOL, versions="1+", default=False)
    log_dirs: tuple[Uuid, ...] = field(array(UUID), versions="2+", ignorable=True, default=())
    #: -1: the broker has not been shut down cleanly.
    previous_broker_epoch: int = field(INT64, versions="3+", ignorable=True, default=-1)


@message
class BrokerRegistrationResponse(ApiResponse, request=BrokerRegistrationRequest):
    """A response with the epoch of the broker, which names this incarnation of it."""

    throttle_time_ms: int = field(INT32, default=0)
    error_code: int = field(INT16, default=0)
    broker_epoch: int = field(INT64, default=-1)
