#!/usr/bin/env bash
# Write the lock files anew: the newest versions that pyproject.toml allows, with their hashes.
# requirements.lock is what `make setup` installs, scripts/audit.lock the auditor of `make audit`,
# scripts/kerberos.lock what the tests of Kerberos add, scripts/docs.lock the builder of `make docs`.
# They name no index: pip asks its own.
set -euo pipefail
cd "$(dirname "$0")/.."

environment=$1
tools=.cache/locker

[ -x "$tools/bin/python" ] || "$environment/bin/python" -m venv "$tools"
"$tools/bin/python" -m pip install --quiet --disable-pip-version-check 'uv>=0.9,<1'

# Lock the requirements $2... (files, or options of uv) into the file $1, for every platform.
lock() {
  local locked=$1
  shift
  "$tools/bin/uv" --no-config pip compile "$@" --upgrade --universal --python-version 3.11 \
    --generate-hashes --no-header --no-emit-index-url --no-annotate --quiet \
    --output-file "$locked"
}

# What builds the package, and what of the rest comes as source.
backend=$("$environment/bin/python" -c 'import tomllib
with open("pyproject.toml", "rb") as project:
    print(*tomllib.load(project)["build-system"]["requires"], sep="\n")')
lock requirements.lock pyproject.toml --extra dev <(echo "$backend")
# The builder of the site reads the package without importing it, so it needs none of the rest.
docs=$("$environment/bin/python" -c 'import tomllib
with open("pyproject.toml", "rb") as project:
    print(*tomllib.load(project)["project"]["optional-dependencies"]["docs"], sep="\n")')
lock scripts/docs.lock <(echo "$docs")
lock scripts/audit.lock <(echo "pip-audit>=2.7,<3")
# gssapi is always built here; Cython is what it is built with.
lock scripts/kerberos.lock <(echo "gssapi>=1.8,<2
cython>=3.1.3,<4
$backend")
