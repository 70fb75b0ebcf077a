#!/usr/bin/env bash
# Install the requirements of the Kerberos tests: a KDC (MIT's krb5kdc), and in the virtual
# environment $1 the package `gssapi`, which is built against Kerberos' C library from the source in
# scripts/kerberos.lock. Missing Debian packages are installed if that is possible. If not, the script
# says so and succeeds: the tests are then skipped, with the reason.
set -euo pipefail

environment=$1
directory=$(dirname "$0")
# Debian's KDC is in a directory that is only on root's PATH.
export PATH="$PATH:/usr/sbin:/usr/local/sbin:/sbin"

have_kdc() {
  command -v krb5kdc > /dev/null && command -v kdb5_util > /dev/null &&
    command -v kadmin.local > /dev/null
}

have_gssapi() {
  "$environment/bin/python" -c 'import gssapi' 2> /dev/null
}

# Requirements of building the package: the headers of Kerberos and Python, and a compiler.
have_compiler() {
  command -v krb5-config > /dev/null && command -v cc > /dev/null &&
    "$environment/bin/python" -c 'import os, sys, sysconfig
sys.exit(not os.path.exists(sysconfig.get_path("include") + "/Python.h"))'
}

missing=()
have_kdc || missing+=(krb5-kdc krb5-admin-server)
have_gssapi || have_compiler || missing+=(gcc libc6-dev libkrb5-dev python3-dev)
if [ ${#missing[@]} -gt 0 ]; then
  "$directory/debian_package.sh" "${missing[@]}" ||
    echo "The Kerberos tests need packages that are not installed: ${missing[*]} (Debian's names)." >&2
fi
have_gssapi && exit 0
# Only tests run it, and its compiler takes most of its time for optimizing.
CFLAGS="${CFLAGS:-} -O0" "$directory/install_locked.sh" "$environment" "$directory/kerberos.lock" ||
  echo "The package gssapi could not be installed: the Kerberos tests will be skipped." >&2
