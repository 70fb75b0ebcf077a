"""Ask the Python packaging advisory database about everything that is installed in $1.

Ends with 1 where a vulnerability is known, and with 0 where none is. What could not be asked about
is said in so many words: where the database cannot be reached that is every package, and nothing
has been audited then.
"""

from __future__ import annotations

import json
import subprocess
import sys


def main(environment: str) -> int:
    """Audit the packages of a directory; give the exit code."""
    command = [
        *(sys.executable, "-m", "pip_audit", "--path", environment, "--skip-editable"),
        *("--progress-spinner", "off", "--timeout", "30", "--format", "json"),
    ]
    audit = subprocess.run(command, capture_output=True, text=True, check=False)
    text, exit_code = judge(audit.stdout, audit.stderr)
    print(text)
    return exit_code


def judge(answer: str, errors: str) -> tuple[str, int]:
    """Tell in words, and by an exit code, what pip-audit's JSON or its errors say."""
    if not answer.lstrip().startswith("{"):
        words = [line for line in errors.splitlines() if line.strip()] or ["no answer"]
        return f"audit: nothing was audited: {words[-1]}", 0
    packages = json.loads(answer)["dependencies"]
    vulnerable = [package for package in packages if package.get("vulns")]
    lines = [
        f"{package['name']} {package['version']}: {known['id']}, "
        f"mended in {', '.join(known['fix_versions']) or 'no version yet'}"
        for package in vulnerable
        for known in package["vulns"]
    ]
    unknown = sum("skip_reason" in package for package in packages)
    lines.append(
        f"audit: {len(packages) - unknown} packages audited, {len(vulnerable)} of them vulnerable;"
        f" {unknown} could not be audited"
    )
    return "\n".join(lines), 1 if vulnerable else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
