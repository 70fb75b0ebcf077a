#!/usr/bin/env bash
# Make a virtual environment in the directory $1, from the first Python 3.11 or newer on the PATH,
# and install the package into it with all that its checks and tests need.
set -euo pipefail

environment=$1

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
# Spark looks through the directories of sys.path for modules named pyspark_*. It would not see one
# that only an import hook knows, which is how an editable install comes by default.
"$environment/bin/python" -m pip install --disable-pip-version-check \
  --config-settings editable_mode=compat -e '.[dev]'
