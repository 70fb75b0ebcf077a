#!/usr/bin/env bash
# Audit the packages of the virtual environment $1 for known vulnerabilities (see audit.py).
# The auditor lives in an environment of its own, so that it changes nothing that it looks at.
set -euo pipefail

environment=$1
auditor=.cache/auditor

if ! { [ -x "$auditor/bin/python" ] || "$environment/bin/python" -m venv "$auditor"; } ||
  ! "$auditor/bin/python" -m pip install --quiet --disable-pip-version-check 'pip-audit>=2.7,<3'; then
  echo "audit: nothing was audited: the auditor could not be installed"
  exit 0
fi
"$auditor/bin/python" "$(dirname "$0")/audit.py" \
  "$("$environment/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"
