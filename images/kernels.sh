#!/bin/sh
# Build step: compiles the kernels against the torch of /opt/venv, and proves that it loads them.
# Usage: kernels.sh SOURCES FOLDER    The compiler stays in this stage; FOLDER gets one library.
set -eu
DEBIAN_FRONTEND=noninteractive
export DEBIAN_FRONTEND
apt-get update -qq
apt-get install -y -qq --no-install-recommends g++ libc6-dev >/dev/null
python=/opt/venv/bin/python
"$python" -I -m tarfile -e /opt/build/torch-include.tar.bz2 "$(echo /opt/venv/lib/python3*/site-packages/torch)"
"$python" "$1/build.py" "$2"
"$python" -c 'import sys, torch; torch.ops.load_library(sys.argv[1]); print(torch.ops.sluice.isas())' \
    "$2/_native.so"
