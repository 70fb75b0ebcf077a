"""Check all packages in a directory against the Python Packaging Advisory Database.

The exit code is 0 if all packages were audited and have no known vulnerabilities, and 1 otherwise.
Exceptions are recorded in audit_exceptions.toml, each with a reason and an expiry date; a current
one is printed and does not fail the audit:

    [[exception]]
    id = "PYSEC-2026-1"  # or "not-audited", if the database cannot be queried
    reason = "why that is acceptable"
    expires = 2026-12-31
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tomllib
from datetime import UTC, date, datetime
from pathlib import Path
from typing import NamedTuple

EXCEPTIONS = Path(__file__).with_name("audit_exceptions.toml")
NOT_AUDITED = "not-audited"


class Recorded(NamedTuple):
    """A recorded exception."""

    reason: str
    expires: date

    def __str__(self) -> str:
        """Return the text that is printed with the finding."""
        return f"{self.reason} (until {self.expires})"


class Exceptions:
    """The recorded exceptions, as of a given day."""

    def __init__(self, text: str, today: date) -> None:
        """Parse the exceptions. Raises ValueError or KeyError for a malformed file."""
        self._today = today
        self._by_id = {
            entry["id"]: Recorded(entry["reason"].strip(), entry["expires"])
            for entry in tomllib.loads(text).get("exception", [])
        }
        if nameless := [name for name, entry in self._by_id.items() if not entry.reason]:
            raise ValueError(f"exceptions without a reason: {', '.join(nameless)}")

    def judge(self, name: str) -> tuple[str, bool]:
        """Return a text about the exception for a finding, and whether the finding is excused."""
        entry = self._by_id.get(name)
        if entry is None:
            return "no exception is recorded", False
        if entry.expires < self._today:
            return f"the exception has expired: {entry}", False
        return f"excused: {entry}", True


def judge(answer: str, errors: str, exceptions: Exceptions) -> tuple[str, int]:
    """Return a report on pip-audit's JSON output or its errors, and the exit code."""
    if not answer.lstrip().startswith("{"):
        words = [line for line in errors.splitlines() if line.strip()] or [
            "pip-audit printed nothing"
        ]
        return not_audited(words[-1], exceptions)
    # Packages under development here are in no database.
    packages = [
        package
        for package in json.loads(answer)["dependencies"]
        if "editable" not in package.get("skip_reason", "")
    ]
    lines = []
    failures = 0
    for package in packages:
        for known in package.get("vulns", ()):
            said, is_excused = exceptions.judge(known["id"])
            failures += not is_excused
            lines.append(
                f"{package['name']} {package['version']}: {known['id']}, "
                f"fixed in {', '.join(known['fix_versions']) or 'no version yet'}: {said}"
            )
    vulnerable = sum(bool(package.get("vulns")) for package in packages)
    unknown = [package["name"] for package in packages if "skip_reason" in package]
    lines.append(
        f"audit: {len(packages) - len(unknown)} packages audited, {vulnerable} of them vulnerable;"
        f" {len(unknown)} could not be audited"
    )
    if unknown:
        said, is_excused = exceptions.judge(NOT_AUDITED)
        failures += not is_excused
        lines.append(f"not audited: {', '.join(unknown)}: {said}")
    return "\n".join(lines), 1 if failures else 0


def not_audited(cause: str, exceptions: Exceptions) -> tuple[str, int]:
    """Return a report that no package was audited, and the exit code."""
    said, is_excused = exceptions.judge(NOT_AUDITED)
    return f"audit: no package was audited: {cause}\n{said}", 0 if is_excused else 1


def main() -> int:
    """Audit the packages of a directory; return the exit code."""
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--failed", metavar="CAUSE", help="report that no package was audited, because of CAUSE"
    )
    parser.add_argument("directory", help="directory of the packages to audit")
    arguments = parser.parse_args()
    exceptions = Exceptions(EXCEPTIONS.read_text(), datetime.now(UTC).date())
    if arguments.failed:
        text, exit_code = not_audited(arguments.failed, exceptions)
    else:
        command = [
            *(sys.executable, "-m", "pip_audit", "--path", arguments.directory, "--skip-editable"),
            *("--progress-spinner", "off", "--timeout", "30", "--format", "json"),
        ]
        audit = subprocess.run(command, capture_output=True, text=True, check=False)
        text, exit_code = judge(audit.stdout, audit.stderr, exceptions)
    print(text)
    return exit_code


if __name__ == "__main__":
    sys.exit(main())
