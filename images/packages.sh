#!/bin/sh
# Build step: makes /opt/venv from /requirements.txt, every file checked against its locked hash.
# With TORCH_INDEX_URL torch comes from that index: the locked version in its build, unhashed.
set -eu
. /opt/build/ca_bundle.sh
uv venv --quiet --no-python-downloads --python "$(command -v python3)" /opt/venv
export VIRTUAL_ENV=/opt/venv
if [ -n "${TORCH_INDEX_URL:-}" ]; then
    torch=$(sed -nE 's/^(torch==[^ ]+).*/\1/p' /requirements.txt)
    sed -i '/^torch==/,/[^\\]$/d' /requirements.txt
    uv pip install --quiet --no-deps --index-url "$TORCH_INDEX_URL" "$torch"
fi
uv pip install --quiet --no-deps --require-hashes --requirement /requirements.txt
