#!/usr/bin/env bash
# Build the wheel and the sdist of the last commit into dist/, with the tools of the virtual
# environment $1 (scripts/dist.lock), and check them: a tag of the commit must name the version, two
# builds in different directories must be equal byte for byte, twine must accept the metadata, and the
# wheel must work in an empty environment that is filled from wheels alone, without PySpark
# (scripts/check_install.py). That environment gets the locked versions, which the software bill of
# materials beside the wheel lists (scripts/sbom.py).
set -euo pipefail
cd "$(dirname "$0")/.."

tools=$PWD/$1
umask 022
# The time of every file in the archives.
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Build the last commit in the directory $1, in the time zone $2.
build() {
  mkdir -p "$1/source"
  git archive HEAD | tar -x -C "$1/source"
  TZ=$2 "$tools/bin/python" -m build --no-isolation --outdir "$1/dist" "$1/source" > "$1/log" 2>&1 || {
    cat "$1/log" >&2
    return 1
  }
  "$tools/bin/python" scripts/fix_sdist.py "$1"/dist/*.tar.gz
}

[ -z "$(git status --porcelain)" ] || echo "dist: changes that are not committed are left out"
build "$work/one" UTC
build "$work/two/elsewhere" Asia/Tokyo
for file in "$work"/one/dist/*; do
  cmp "$file" "$work/two/elsewhere/dist/${file##*/}" || {
    echo "dist: two builds of ${file##*/} differ" >&2
    exit 1
  }
done
echo "dist: two builds are equal"
"$tools/bin/python" -m twine check --strict "$work"/one/dist/*
wheel=$(echo "$work"/one/dist/*.whl)
version=$(basename "$wheel" | cut -d - -f 2)
for tag in $(git tag --points-at HEAD 'v*'); do
  [ "$tag" = "v$version" ] || {
    echo "dist: the tag $tag is on the version $version" >&2
    exit 1
  }
done

"$tools/bin/python" -m venv "$work/empty"
# Without hashes, which pip would then want for the wheel, too: sbom.py compares those of the report.
sed -n -E 's/^([a-zA-Z0-9._-]+==.*) \\$/\1/p' requirements.lock > "$work/constraints"
"$work/empty/bin/python" -m pip install --quiet --disable-pip-version-check --only-binary :all: \
  --constraint "$work/constraints" --report "$work/report.json" "$wheel"
"$work/empty/bin/python" -m pip check --disable-pip-version-check
# Not from here: the package of this directory would be imported instead.
(cd "$work" && empty/bin/python -I "$OLDPWD/scripts/check_install.py")
"$tools/bin/python" scripts/sbom.py "$wheel" "$work/report.json" \
  "$work"/empty/lib/python3*/site-packages requirements.lock \
  "$work/one/dist/spark_kafka_sink-$version.cdx.json"

mkdir -p dist
rm -f dist/*
mv "$work"/one/dist/* dist/
sha256sum dist/*
