#!/usr/bin/env bash
# Update the lock files to the newest versions that pyproject.toml allows, with their hashes.
# `make setup` installs requirements.lock, `make demo` in a new clone scripts/demo.lock, `make audit`
# the auditor of scripts/audit.lock, `make docs` the builder of scripts/docs.lock, `make dist` and
# `make matrix` the tools of scripts/dist.lock, `make notebooks` those of scripts/notebooks.lock, and
# the Kerberos tests need scripts/kerberos.lock in addition.
# The files name no index: pip uses the configured one.
set -euo pipefail
cd "$(dirname "$0")/.."

environment=$1
tools=.cache/locker

[ -x "$tools/bin/python" ] || "$environment/bin/python" -m venv "$tools"
# The locker is locked, too.
"$tools/bin/python" -m pip install --quiet --disable-pip-version-check --require-hashes \
  -r <(sed -n -E '/^uv==/,/[^\]$/p' scripts/dist.lock)

# Lock the requirements $2... (files, or options of uv) into the file $1, for every platform.
lock() {
  local locked=$1
  shift
  "$tools/bin/uv" --no-config pip compile "$@" --upgrade --universal --python-version 3.11 \
    --generate-hashes --no-header --no-emit-index-url --no-annotate --quiet \
    --output-file "$locked"
}

# The requirements of building the package, and any others that are installed from source.
backend=$("$environment/bin/python" -c 'import tomllib
with open("pyproject.toml", "rb") as project:
    print(*tomllib.load(project)["build-system"]["requires"], sep="\n")')
lock requirements.lock pyproject.toml --extra dev <(echo "$backend")
# The demo runs with the same versions as the tests.
lock scripts/demo.lock pyproject.toml --extra demo <(echo "$backend") --constraint requirements.lock
# The builder of the site reads the package without importing it, so it needs no other dependencies.
docs=$("$environment/bin/python" -c 'import tomllib
with open("pyproject.toml", "rb") as project:
    print(*tomllib.load(project)["project"]["optional-dependencies"]["docs"], sep="\n")')
lock scripts/docs.lock <(echo "$docs")
# The notebooks see the packages of the development environment, so those have the same versions.
notebooks=$("$environment/bin/python" -c 'import tomllib
with open("pyproject.toml", "rb") as project:
    print(*tomllib.load(project)["project"]["optional-dependencies"]["notebooks"], sep="\n")')
lock scripts/notebooks.lock <(echo "$notebooks") --constraint requirements.lock
lock scripts/audit.lock <(echo "pip-audit>=2.7,<3")
lock scripts/dist.lock <(echo "build>=1.2,<2
cyclonedx-python-lib[json-validation]>=11,<12
twine>=6,<7
uv>=0.9,<1
$backend")
# gssapi is always built from source, with Cython.
lock scripts/kerberos.lock <(echo "gssapi>=1.8,<2
cython>=3.1.3,<4
$backend")
