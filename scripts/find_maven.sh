#!/usr/bin/env bash
# Ensure that the tests can start a real Kafka. They need KAFKA_BOOTSTRAP_SERVERS, a Docker daemon or
# Maven. If there is none, Debian's Maven is installed if that is possible. If not, the script says so
# and succeeds: the tests that need Kafka are then skipped, or fail if CI is set.
set -euo pipefail
cd "$(dirname "$0")"

[ -z "${KAFKA_BOOTSTRAP_SERVERS:-}" ] || exit 0
command -v mvn > /dev/null && exit 0
command -v docker > /dev/null && timeout 10 docker info > /dev/null 2>&1 && exit 0
./debian_package.sh maven && exit 0
echo "Cannot start a real Kafka: install Maven or Docker, or set KAFKA_BOOTSTRAP_SERVERS." >&2
