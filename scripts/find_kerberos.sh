#!/usr/bin/env bash
# See to it that the tests of Kerberos can run: a KDC (MIT's krb5kdc), and in the virtual environment
# $1 the package `gssapi`, which is built here against Kerberos' C library, from the source that
# scripts/kerberos.lock names. What is missing is
# installed from Debian's packages if that is allowed; if not, say so and go on: the tests that need
# it then skip, with the reason.
set -euo pipefail

environment=$1
directory=$(dirname "$0")
# Debian's KDC lies where only root's PATH leads.
export PATH="$PATH:/usr/sbin:/usr/local/sbin:/sbin"

have_kdc() {
  command -v krb5kdc > /dev/null && command -v kdb5_util > /dev/null &&
    command -v kadmin.local > /dev/null
}

have_gssapi() {
  "$environment/bin/python" -c 'import gssapi' 2> /dev/null
}

# What pip builds the package with: Kerberos' headers, Python's, and a compiler.
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
    echo "Not all that the tests of Kerberos need is installed: ${missing[*]} (Debian's names)." >&2
fi
have_gssapi && exit 0
"$directory/install_locked.sh" "$environment" "$directory/kerberos.lock" ||
  echo "The package gssapi could not be built: the tests of Kerberos cannot run." >&2
