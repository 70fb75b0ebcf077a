#!/usr/bin/env bash
# Make a virtual environment in the directory $1, from the first Python 3.11 or newer on the PATH,
# and install the package into it with all that its checks and tests need: exactly the files that
# requirements.lock names, where Python is the version that CI has (3.11). With any other version pip
# takes what pyproject.toml allows, and no hash is checked.
set -euo pipefail

environment=$1
locked_version=3.11

find_python() {
  local name
  for name in python3 python3.14 python3.13 python3.12 python3.11; do
    if "$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2> /dev/null; then
      command -v "$name"
      return 0
    fi
  done
  return 1
}

make_environment() {
  "$1" -m venv "$environment"
}

if ! python=$(find_python); then
  echo "Python 3.11 or newer is needed and was not found on the PATH." >&2
  exit 1
fi

if ! "$environment/bin/python" -m pip --version > /dev/null 2>&1; then
  echo "setup: making $environment with $("$python" --version) ($python)"
  # Debian ships Python without what venv needs.
  if ! make_environment "$python"; then
    "$(dirname "$0")/debian_package.sh" python3-venv || {
      echo "This Python cannot make virtual environments: install python3-venv." >&2
      exit 1
    }
    make_environment "$python"
  fi
fi

echo "setup: installing the package and its tools (a few minutes the first time)"
version=$("$environment/bin/python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
if [ "$version" = "$locked_version" ]; then
  "$(dirname "$0")/install_locked.sh" "$environment" requirements.lock
  arguments=(--no-deps --no-build-isolation -e .)
else
  echo "setup: requirements.lock is for Python $locked_version, this is $version:" \
    "installing what pyproject.toml allows, without checking hashes"
  arguments=(-e '.[dev]')
fi
# Spark looks through the directories of sys.path for modules named pyspark_*. It would not see one
# that only an import hook knows, which is how an editable install comes by default.
"$environment/bin/python" -m pip install --disable-pip-version-check \
  --config-settings editable_mode=compat "${arguments[@]}"
"$environment/bin/python" -m pip check --disable-pip-version-check
