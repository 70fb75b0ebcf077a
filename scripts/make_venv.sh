#!/usr/bin/env bash
# Create a virtual environment in the directory $1 with the first Python 3.11 or newer on the PATH, and
# install the package with the requirements of its extra $3. With Python 3.11, the version of CI,
# exactly the files in the lock file $2 are installed. With any other version, pip chooses
# versions that pyproject.toml allows and checks no hashes.
set -euo pipefail

environment=$1
lock=$2
extra=$3
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
  echo "Python 3.11 or newer is required and was not found on the PATH: install it." >&2
  exit 1
fi

if ! "$environment/bin/python" -m pip --version > /dev/null 2>&1; then
  echo "setup: creating $environment with $("$python" --version) ($python)"
  # Debian ships Python without ensurepip, which venv needs.
  if ! make_environment "$python"; then
    "$(dirname "$0")/debian_package.sh" python3-venv || {
      echo "This Python cannot create virtual environments: install python3-venv." >&2
      exit 1
    }
    make_environment "$python"
  fi
fi

echo "setup: installing the package and what it needs (a few minutes the first time)"
version=$("$environment/bin/python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
if [ "$version" = "$locked_version" ]; then
  "$(dirname "$0")/install_locked.sh" "$environment" "$lock"
  arguments=(--no-deps --no-build-isolation -e .)
else
  echo "setup: $lock is for Python $locked_version, but this is Python $version:" \
    "installing versions that pyproject.toml allows, without checking hashes"
  arguments=(-e ".[$extra]")
fi
# Spark searches the directories of sys.path for modules named pyspark_*. It would not find a module
# behind an import hook, which is what an editable install uses by default.
"$environment/bin/python" -m pip install --disable-pip-version-check \
  --config-settings editable_mode=compat "${arguments[@]}"
"$environment/bin/python" -m pip check --disable-pip-version-check
