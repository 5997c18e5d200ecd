#!/bin/sh
# Build step: puts uv into /opt/uv. The base image has Python, and pip or apt to get pip with.
set -eu
. /opt/build/ca_bundle.sh
if ! python3 -m pip --version >/dev/null 2>&1; then
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends python3-pip >/dev/null
fi
python3 -m pip install --quiet --no-cache-dir --target /opt/uv "uv==$UV_VERSION"
