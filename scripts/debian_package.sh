#!/usr/bin/env bash
# Install Debian packages if that is possible: as root, and with apt-get. Otherwise do nothing and
# exit with status 1. All output goes to stderr, because callers print results to stdout.
set -euo pipefail

[ "$(id -u)" = 0 ] && command -v apt-get > /dev/null || exit 1

echo "setup: installing $* with apt-get" >&2
export DEBIAN_FRONTEND=noninteractive
# Fail soon on a machine without network.
bounded=(-o Acquire::Retries=1 -o Acquire::http::Timeout=20 -o Acquire::https::Timeout=20)
apt-get update "${bounded[@]}" >&2
apt-get install "${bounded[@]}" --yes --no-install-recommends "$@" >&2
