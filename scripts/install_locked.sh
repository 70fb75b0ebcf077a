#!/usr/bin/env bash
# Install the packages of the lock file $2 into the virtual environment $1. pip rejects files with
# other hashes. The lock file lists every package, so pip follows no dependencies (--no-deps): for one
# with an extra (`coverage[toml]`) it would choose the newest version, whose hash the file does not
# have. `pip check` then finds what is missing. Source packages are built with the setuptools (and
# Cython) of the lock file, installed first: an isolated build would fetch its own.
set -euo pipefail

environment=$1
lock=$2

pip_install=("$environment/bin/python" -m pip install --disable-pip-version-check
  --require-hashes --no-deps --no-build-isolation --use-pep517 --no-compile --progress-bar off)

# Install with pip, and show the large files as they arrive: a download may take a minute.
install() {
  "${pip_install[@]}" "$@" | sed -u -n -E \
    -e 's/^ *(Downloading|Using cached) ([^- ]+-[^- ]+)[^ ]*\.(whl|gz) \(([0-9.]+ MB)\).*/  \2, \4/p' \
    -e 's/^Installing collected packages.*/  unpacking .../p'
}

# With a new pip, since none may be replaced while another one runs. The lines of an entry, except
# the last, end in a backslash.
builders=$(sed -n -E '/^(pip|setuptools|cython)==/,/[^\\]$/p' "$lock")
# The first packages show whether there is an index: pip would wait for it for minutes.
[ -z "$builders" ] || install --retries 2 --timeout 8 -r <(echo "$builders") || {
  echo "The packages of $lock cannot be installed: pip needs a package index (see its message above" \
    "and 'pip config list')." >&2
  exit 1
}
# In two processes: most of pip's time goes into reading the index, in one thread.
part() {
  awk -v part="$1" '/^[^ #]/ { entry++ } entry % 2 == part' "$lock"
}
install -r <(part 0) &
other=$!
trap 'kill "$other" 2> /dev/null' EXIT
install -r <(part 1)
wait "$other"
trap - EXIT
# pip would compile thousands of modules one after another. A package may have files that are no
# Python of this version, and never imports them.
"$environment/bin/python" -m compileall -q -j 0 "$environment/lib" > /dev/null || true
broken=$("$environment/bin/python" -m pip check --disable-pip-version-check) || {
  echo "$broken" >&2
  exit 1
}
