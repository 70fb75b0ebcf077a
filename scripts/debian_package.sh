#!/usr/bin/env bash
# Install Debian packages where that is allowed: as root, with apt-get at hand.
# Exit status 1, and nothing done, where it is not. Output goes to stderr: callers print results.
set -euo pipefail

[ "$(id -u)" = 0 ] && command -v apt-get > /dev/null || exit 1

echo "setup: installing $* with apt-get" >&2
export DEBIAN_FRONTEND=noninteractive
# A machine without network is to be told so soon.
bounded=(-o Acquire::Retries=1 -o Acquire::http::Timeout=20 -o Acquire::https::Timeout=20)
apt-get update "${bounded[@]}" >&2
apt-get install "${bounded[@]}" --yes --no-install-recommends "$@" >&2
