#!/bin/sh
# Build step: compiles for GPUs what an engine would otherwise compile when it starts, with compilers
# that stay in this stage. FOLDER gets what belongs beside the sources of `sluice_kernels`; for `cpu`
# nothing. What an interrupted build has made is kept in SCRATCH.
# Usage: gpu_kernels.sh ACCELERATOR SOURCES FOLDER SCRATCH
set -eu
. /opt/build/ca_bundle.sh
mkdir -p "$3"
[ "$1" = cuda ] || exit 0
DEBIAN_FRONTEND=noninteractive
export DEBIAN_FRONTEND
apt-get update -qq
apt-get install -y -qq --no-install-recommends g++ libc6-dev >/dev/null
sh /opt/build/uv.sh
/opt/uv/bin/uv pip install --quiet --python /opt/venv/bin/python --no-deps --require-hashes \
    --requirement /compiler.txt
# flashinfer calls ninja by its name.
export PYTHONPATH="$2" PATH="/opt/venv/bin:$PATH"
# shellcheck disable=SC2086  (lists)
python "$2/build_flashinfer.py" "$4/built" -a $ARCHITECTURES --dtypes $DTYPES \
    --heads $HEADS --scratch "$4/scratch"
cp -r "$4/built" "$3/flashinfer_built"
python -m sluice_kernels.triton.build "$3/triton/built"
