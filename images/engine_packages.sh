#!/bin/sh
# Build step: the engine's /opt/venv in one layer, with uv, a C compiler and binutils for as long as
# it takes. A copy from another stage would write the 0.7 GB twice and read it at every build.
# ACCELERATOR: cpu or cuda; for cuda torch stays as it is.
set -eu
case $ACCELERATOR in
cpu) slimmed="torch mooncake" libraries= ;;
# libmlx5, which that build of Mooncake is linked to.
cuda) slimmed=mooncake libraries=ibverbs-providers ;;
esac
DEBIAN_FRONTEND=noninteractive
export DEBIAN_FRONTEND
apt-get update -qq
# Mooncake's native library is linked to them.
# shellcheck disable=SC2086  (a list of packages)
apt-get install -y -qq --no-install-recommends libibverbs1 libnuma1 $libraries >/dev/null
before=$(apt-mark showmanual)
PATH="/opt/uv/bin:$PATH" UV_LINK_MODE=copy
export PATH UV_LINK_MODE
sh /opt/build/uv.sh
sh /opt/build/packages.sh
apt-get install -y -qq --no-install-recommends gcc libc6-dev binutils >/dev/null
# 4 MB of what 62 MB of C++ headers are: the kernels are compiled against them in another stage.
(cd /opt/venv/lib/python3*/site-packages/torch && python3 -I -m tarfile -c /opt/build/torch-include.tar.bz2 include)
for package in $slimmed; do
    PYTHONPATH=/opt/build python3 -m images.slim_$package /opt/venv/lib/python3*/site-packages
done
sh /opt/build/bytecode.sh /opt/venv/lib
apt-mark auto '.*' >/dev/null
# shellcheck disable=SC2086  (a list of packages)
apt-mark manual $before >/dev/null
apt-get autoremove -y -qq --purge -o APT::AutoRemove::RecommendsImportant=false \
    -o APT::AutoRemove::SuggestsImportant=false >/dev/null
rm -rf /opt/uv /var/lib/apt/lists/* /var/cache/apt/* /var/cache/debconf/*-old /var/log/apt
