#!/usr/bin/env bash
# Install the packages of the lock file $2 into the virtual environment $1. pip rejects files with
# other hashes and packages that are not in the lock file. Source packages are built with the
# setuptools (and Cython) of the lock file, installed first: an isolated build would fetch its own.
set -euo pipefail

environment=$1
lock=$2

pip_install() {
  "$environment/bin/python" -m pip install --quiet --disable-pip-version-check \
    --require-hashes --no-build-isolation --use-pep517 "$@"
}

# The lines of an entry, except the last, end in a backslash.
builders=$(sed -n -E '/^(setuptools|cython)==/,/[^\\]$/p' "$lock")
[ -z "$builders" ] || pip_install -r <(echo "$builders")
pip_install -r "$lock"
