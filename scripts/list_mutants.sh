#!/usr/bin/env bash
# Print a sample of mutants with the Python of the virtual environment $1; the other arguments are
# those of list_mutants.py. The mutation tool has its own environment, like the auditor.
set -euo pipefail

environment=$1
shift
mutator=.cache/mutator

if ! "$mutator/bin/python" -c 'import cosmic_ray' 2> /dev/null; then
  "$environment/bin/python" -m venv "$mutator"
  "$mutator/bin/python" -m pip install --quiet --disable-pip-version-check 'cosmic-ray>=8.4,<9' >&2
fi
exec "$mutator/bin/python" "$(dirname "$0")/list_mutants.py" "$@"
