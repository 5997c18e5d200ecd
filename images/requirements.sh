#!/bin/sh
# Build step: writes what the lock file says extras need, with hashes, to /requirements.txt.
# Usage: requirements.sh 'EXTRA…' [PATTERN]    PATTERN: names to leave out (extended regular expression)
set -eu
export_locked() {
    # shellcheck disable=SC2086  (a list of options)
    uv export --project /locked --quiet --frozen --no-dev --no-emit-project --no-header --no-annotate \
        $extras "$@"
}
extras=
for name in $1; do
    extras="$extras --extra $name"
done
skip=
for name in $(export_locked --no-hashes | sed 's/[ =].*//' | grep -xE "${2:-}" || true); do
    skip="$skip --no-emit-package $name"
done
# shellcheck disable=SC2086  (a list of options)
export_locked $skip >/requirements.txt
