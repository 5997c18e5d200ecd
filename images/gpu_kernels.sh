#!/bin/sh
# Build step: compiles for GPUs what an engine would otherwise compile when it starts, with compilers
# that stay in this stage. ROOT gets what belongs into a checkout, and /packed the same as one file;
# for `cpu` they are empty. What an interrupted build has made is kept in SCRATCH, which begins with
# the modules of /archive, if there are any.
# Usage: gpu_kernels.sh ACCELERATOR SOURCES ROOT SCRATCH
set -eu
. /opt/build/ca_bundle.sh
built=$3/kernels/sluice_kernels
mkdir -p "$built/triton" "$4" /packed
[ "$1" = cuda ] || exit 0
if [ -e /archive/gpu-kernels.tar.xz ] && [ ! -e "$4/built" ]; then
    /opt/venv/bin/python "$2/kernel_archive.py" unpack /archive/gpu-kernels.tar.xz --root "$4"
    mv "$4/kernels/sluice_kernels/flashinfer_built" "$4/built"
fi
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
cp -r "$4/built" "$built/flashinfer_built"
python -m sluice_kernels.triton.build "$built/triton/built"
python "$2/kernel_archive.py" pack /packed/gpu-kernels.tar.xz --root "$3"
