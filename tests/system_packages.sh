#!/usr/bin/env bash
# Installs the programs that tests call, where that is possible without asking: as root, with apt-get.
# Elsewhere it says what is missing, and the tests that need it say so too. It never fails: only
# those tests depend on it.
set -uo pipefail
export PATH="$PATH:/usr/sbin:/sbin"

missing_programs=()
missing_packages=()

# need PROGRAM PACKAGE "what it is for"   (tests/programs.py reads these lines)
need() {
  command -v "$1" >/dev/null 2>&1 && return
  missing_programs+=("$1")
  missing_packages+=("$2")
}

need strace strace "kills a process at a chosen system call, and makes the disk say no"
need mkfs.ext4 e2fsprogs "makes the disk image of the power-cut tests"
need mount mount "mounts disk images and small tmpfs disks"
need faketime faketime "runs a process under a wrong clock"
need curl curl "runs the commands of docs/server.md"
need chromium chromium "opens the page of the node"
need chromedriver chromium-driver "drives chromium"
need rabbitmq-server rabbitmq-server "hands out messages, as the other kind of broker"
need prlimit util-linux "caps memory and file sizes"
need pg_createcluster postgresql "is captured by its log, as an older version than that of PyPI"
need locale-gen locales "sorts text in PostgreSQL as a language does, not by bytes"
need mariadbd mariadb-server "changes that are captured from its binary log"

[ ${#missing_programs[@]} -eq 0 ] && exit 0
line="apt-get install -y --no-install-recommends ${missing_packages[*]}"

if [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null 2>&1; then
  echo "installing for the tests: ${missing_packages[*]}"
  export DEBIAN_FRONTEND=noninteractive
  # The lists of a fresh container are empty or old: one update, then one more try.
  if $line >/dev/null 2>&1 || { apt-get update -q >/dev/null 2>&1 && $line >/dev/null 2>&1; }; then
    exit 0
  fi
  echo "could not install them; some fault tests will be skipped. By hand: $line" >&2
else
  echo "not installed: ${missing_programs[*]}; some fault tests will be skipped. To get them: $line" >&2
fi
exit 0
