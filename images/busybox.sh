#!/bin/sh
# Build step: /bin/busybox from Debian's packages, linked statically.
set -eu
apt-get update -qq
DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends busybox-static >/dev/null
rm -rf /var/lib/apt/lists/*
