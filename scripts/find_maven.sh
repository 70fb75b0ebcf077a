#!/usr/bin/env bash
# See to it that the tests can get a real Kafka. They need one of: KAFKA_BOOTSTRAP_SERVERS, a
# Docker daemon, Maven. Where there is none, Debian's Maven is installed if that is allowed; if not,
# say so and go on: the tests that need Kafka then skip, or fail where CI is set.
set -euo pipefail
cd "$(dirname "$0")"

[ -z "${KAFKA_BOOTSTRAP_SERVERS:-}" ] || exit 0
command -v mvn > /dev/null && exit 0
command -v docker > /dev/null && timeout 10 docker info > /dev/null 2>&1 && exit 0
./debian_package.sh maven && exit 0
echo "No way to start a real Kafka: install Maven or Docker, or set KAFKA_BOOTSTRAP_SERVERS." >&2
