#!/usr/bin/env bash
# Audit the packages of the virtual environment $1 for known vulnerabilities (see audit.py).
# The auditor has its own environment, so that it does not change the one it audits.
set -euo pipefail
cd "$(dirname "$0")/.."

environment=$1
auditor=.cache/auditor
packages=$("$environment/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')

if { [ -x "$auditor/bin/python" ] || "$environment/bin/python" -m venv "$auditor"; } &&
  scripts/install_locked.sh "$auditor" scripts/audit.lock; then
  "$auditor/bin/python" scripts/audit.py "$packages"
else
  "$environment/bin/python" scripts/audit.py "$packages" \
    --failed "the auditor could not be installed"
fi
