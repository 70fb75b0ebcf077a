from __future__ import annotations

import importlib
import pkgutil

import kio.schema

from spark_kafka_sink.protocol.api_keys import ApiKey


def flexible_versions() -> dict[int, dict[int, bool]]:
    """Return from kio which versions of each API are flexible."""
    flexible: dict[int, dict[int, bool]] = {}
    for api in pkgutil.iter_modules(kio.schema.__path__):
        if not api.ispkg or api.name.endswith("header"):
            continue
        package = importlib.import_module(f"kio.schema.{api.name}")
        for version in pkgutil.iter_modules(package.__path__):
            try:
                module = importlib.import_module(f"{package.__name__}.{version.name}.request")
            except ModuleNotFoundError:
                continue  # a message that is not a request
            declared = next(
                it
                for name, it in vars(module).items()
                if name.endswith("Request") and it.__module__ == module.__name__
            )
            versions = flexible.setdefault(declared.__api_key__, {})
            versions[declared.__version__] = declared.__flexible__
    return flexible


def test_first_flexible_versions_equal_kios():
    """Every request of kio is flexible since the version declared here."""
    for number, versions in flexible_versions().items():
        key = ApiKey(number)
        ours = {version: version >= key.flexible_from for version in versions}
        assert versions == ours, key.name


def test_keys_equal_kafkas():
    """Keys run from 0 to the last one of Kafka 4.3, under Kafka's names."""
    assert list(range(93)) == sorted(ApiKey)
    assert "INIT_PRODUCER_ID" == ApiKey(22).name
