#!/usr/bin/env bash
# Print the home directory of a Java 17 or newer, for JAVA_HOME.
# It searches JAVA_HOME, the PATH, and the usual directories of Linux distributions and macOS. If it
# finds none, it installs Debian's package if that is possible. All messages go to stderr.
set -euo pipefail
cd "$(dirname "$0")"

oldest=17

# Print the home of the Java whose command is $1; fail if it does not run or is too old.
home_of() {
  local properties version
  properties=$("$1" -XshowSettings:properties -version 2>&1) || return 1
  version=$(sed -n 's/^ *java\.specification\.version = \([0-9]*\).*/\1/p' <<< "$properties")
  [ -n "$version" ] && [ "$version" -ge "$oldest" ] || return 1
  sed -n 's/^ *java\.home = //p' <<< "$properties"
}

find_java() {
  local command
  for command in "${JAVA_HOME:-/nonexistent}/bin/java" "$(command -v java || true)" \
    /usr/lib/jvm/*/bin/java /Library/Java/JavaVirtualMachines/*/Contents/Home/bin/java; do
    [ -x "$command" ] && home_of "$command" && return 0
  done
  return 1
}

find_java && exit 0
./debian_package.sh openjdk-17-jre-headless && find_java && exit 0
echo "Java $oldest or newer is required and was not found: install it (on Debian: apt-get install" \
  "openjdk-17-jre-headless) or set JAVA_HOME." >&2
exit 1
