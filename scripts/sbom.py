"""Write the software bill of materials of the wheel, as CycloneDX JSON: run by `make dist`.

    python -m pip install --report report.json WHEEL
    SOURCE_DATE_EPOCH=1700000000 python scripts/sbom.py \
        WHEEL report.json SITE_PACKAGES requirements.lock FILE

It lists what `pip install` of the wheel installs, without extras: versions, licences, the file of
each package with its hash, and which package requires which. pip's report says what was installed
in the folder SITE_PACKAGES, and the lock file what was tested: a package that is not locked, or
that has another version or hash, is an error. The bill depends on nothing else, neither on the time
nor on the machine's paths, and is checked against the schema of CycloneDX.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
import uuid
from datetime import UTC, datetime
from importlib.metadata import distributions
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote, urlsplit

from packaging.requirements import Requirement

if TYPE_CHECKING:
    from importlib.metadata import PackageMetadata

_ENTRY = re.compile(r"^([\w.-]+)==(\S+)((?:.*\\\n)*.*)", re.MULTILINE)
#: Older metadata may have the whole text of a licence instead of its name.
_LONGEST_NAME = 40
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")
#: The name of the bill itself is made from its wheel's hash, in this namespace.
_NAMESPACE = uuid.UUID("6f6d6e38-2b0a-5b4e-9d0a-6f0f6d2f6d1c")


class Package(NamedTuple):
    """An installed package."""

    name: str
    version: str
    licence: str
    file: str
    sha256: str
    requires: tuple[str, ...]


class NotLockedError(Exception):
    """A package is installed that is not in the lock file as it is."""


def plain(name: str) -> str:
    """Return the name of a package as indexes spell it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def locked_files(lock: str) -> dict[tuple[str, str], frozenset[str]]:
    """Return the SHA-256 hashes of each name and version in the text of a lock file."""
    return {
        (plain(name), version): frozenset(_HASH.findall(rest))
        for name, version, rest in _ENTRY.findall(lock)
    }


def licences(folder: Path) -> dict[str, str]:
    """Return the licence of each package that is installed in a folder, by its name."""
    return {
        plain(found.name): _licence(found.metadata) for found in distributions(path=[str(folder)])
    }


def _licence(metadata: PackageMetadata) -> str:
    """Return the expression; of older metadata a short text, or else the classifiers."""
    expression, text = (
        (metadata.get_all(key) or [""])[0].strip() for key in ("License-Expression", "License")
    )
    if expression or (text and len(text) < _LONGEST_NAME and "\n" not in text):
        return expression or text
    names = [line for line in metadata.get_all("Classifier") or () if line.startswith("License ::")]
    return ", ".join(line.rpartition(" :: ")[2] for line in names)


def packages(
    report: dict[str, Any], lock: str, wheel: str, licence_of: dict[str, str]
) -> list[Package]:
    """Return what pip's report has installed, sorted by name, with the wheel named `wheel`.

    Raises NotLockedError for a package, other than the wheel, that the lock file does not have.
    """
    files = locked_files(lock)
    installed = {plain(item["metadata"]["name"]) for item in report["install"]}
    found = []
    for item in report["install"]:
        metadata, download = item["metadata"], item["download_info"]
        name, version = plain(metadata["name"]), metadata["version"]
        sha256 = download["archive_info"]["hashes"]["sha256"]
        file = unquote(Path(urlsplit(download["url"]).path).name)
        if file != wheel and sha256 not in files.get((name, version), ()):
            raise NotLockedError(f"{file} (sha256 {sha256}) is installed, but it is not locked")
        requirements = [Requirement(text) for text in metadata.get("requires_dist", ())]
        requires = {
            plain(requirement.name)
            for requirement in requirements
            if not requirement.marker or requirement.marker.evaluate({"extra": ""})
        }
        found.append(
            Package(
                name,
                version,
                licence_of.get(name, ""),
                file,
                sha256,
                tuple(sorted(requires & installed)),
            )
        )
    return sorted(found)


def bill(found: list[Package], wheel: Path, seconds: int) -> str:
    """Return the bill of these packages for the wheel, in JSON, made at this time."""
    # They are in the environment of `make dist` only.
    from cyclonedx.contrib.license.factories import LicenseFactory  # noqa: PLC0415
    from cyclonedx.model import (  # noqa: PLC0415
        ExternalReference,
        ExternalReferenceType,
        HashAlgorithm,
        HashType,
        XsUri,
    )
    from cyclonedx.model.bom import Bom  # noqa: PLC0415
    from cyclonedx.model.component import Component, ComponentType  # noqa: PLC0415
    from cyclonedx.model.dependency import Dependency  # noqa: PLC0415
    from cyclonedx.output.json import JsonV1Dot6  # noqa: PLC0415
    from cyclonedx.schema import SchemaVersion  # noqa: PLC0415
    from cyclonedx.validation.json import JsonStrictValidator  # noqa: PLC0415
    from packageurl import PackageURL  # noqa: PLC0415

    factory = LicenseFactory()

    def component(package: Package) -> Component:
        url = PackageURL("pypi", name=package.name, version=package.version)
        digest = HashType(alg=HashAlgorithm.SHA_256, content=package.sha256)
        is_root = package.file == wheel.name
        return Component(
            type=ComponentType.LIBRARY,
            name=package.name,
            version=package.version,
            bom_ref=str(url),
            purl=url,
            licenses=[factory.make_from_string(package.licence)] if package.licence else (),
            hashes=[digest] if is_root else (),
            # A package has a file for each platform; this is the one that was checked.
            external_references=[
                ExternalReference(
                    type=ExternalReferenceType.DISTRIBUTION,
                    url=XsUri(package.file),
                    hashes=[digest],
                )
            ],
        )

    by_name = {package.name: component(package) for package in found}
    bom = Bom(
        serial_number=uuid.uuid5(_NAMESPACE, hashlib.sha256(wheel.read_bytes()).hexdigest()),
        dependencies=[
            Dependency(
                ref=by_name[package.name].bom_ref,
                dependencies=[Dependency(ref=by_name[name].bom_ref) for name in package.requires],
            )
            for package in found
        ],
    )
    bom.metadata.timestamp = datetime.fromtimestamp(seconds, UTC)
    for package in found:
        if package.file == wheel.name:
            bom.metadata.component = by_name[package.name]
        else:
            bom.components.add(by_name[package.name])
    text = JsonV1Dot6(bom).output_as_string(indent=2)
    if error := JsonStrictValidator(SchemaVersion.V1_6).validate_str(text):
        raise ValueError(f"the bill of materials is not CycloneDX: {error}")
    return text + "\n"


def main() -> None:
    """Write the bill that the command line asks for."""
    wheel, report, folder, lock, output = map(Path, sys.argv[1:])
    try:
        found = packages(
            json.loads(report.read_text()), lock.read_text(), wheel.name, licences(folder)
        )
    except NotLockedError as error:
        sys.exit(f"sbom: {error}")
    output.write_text(bill(found, wheel, int(os.environ["SOURCE_DATE_EPOCH"])))
    print(f"sbom: {output.name} has {len(found) - 1} packages beside {wheel.name}")


if __name__ == "__main__":
    main()
