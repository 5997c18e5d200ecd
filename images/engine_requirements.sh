#!/bin/sh
# Build step: the engine's requirements for `cpu` or `cuda`, into /requirements.txt, and what kernels
# for GPUs are compiled with into /compiler.txt.
# Usage: engine_requirements.sh ACCELERATOR
set -eu
: >/compiler.txt
case $1 in
cpu)
    # What only a GPU needs is not installed: 3 GB on x86-64, where the registry has no CPU build.
    sh /opt/build/requirements.sh "engine handover-cpu tracing" '(nvidia|cuda)-.*|triton'
    ;;
cuda)
    sh /opt/build/requirements.sh "engine gpu tracing"
    uv export --project /locked --quiet --frozen --only-group flashinfer-build --no-emit-project \
        --no-header --no-annotate >/compiler.txt
    ;;
*)
    echo "ACCELERATOR: $1 is not allowed; allowed: cpu, cuda" >&2
    exit 1
    ;;
esac
