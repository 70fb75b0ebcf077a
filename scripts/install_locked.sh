#!/usr/bin/env bash
# Install into the virtual environment $1 what the lock file $2 names. pip refuses what has another
# hash, and what is not named. Packages that come as source are built with the setuptools (and the
# Cython) of the lock file, which are installed first: a build in isolation would fetch its own.
set -euo pipefail

environment=$1
lock=$2

pip_install() {
  "$environment/bin/python" -m pip install --quiet --disable-pip-version-check \
    --require-hashes --no-build-isolation --use-pep517 "$@"
}

# Each entry goes on as long as its lines end in a backslash.
builders=$(sed -n -E '/^(setuptools|cython)==/,/[^\\]$/p' "$lock")
[ -z "$builders" ] || pip_install -r <(echo "$builders")
pip_install -r "$lock"
