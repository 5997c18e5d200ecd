#!/bin/sh
# Brings the model of an image into an engine's volume: an init container runs it in the image itself
# (copy), or beside the image's mounted files (link).
# Usage: model_of_image.sh BUSYBOX copy|link ROOT TARGET
# The model is in ROOT/models, in ROOT, or in the only folder of ROOT/models. Exit code 1: starting
# again may help. What does not help is said once, with 2; the start after that waits for the pod's
# end instead of failing over and over.
set -u
busybox=$1 how=$2 root=${3%/} target=$4
failed=$target/.failed
log=${SLUICE_TERMINATION_LOG:-/dev/termination-log}
needed="config.json tokenizer.json"
optional="generation_config.json hf_quant_config.json tokenizer_config.json special_tokens_map.json
chat_template.jinja chat_template.json model.safetensors.index.json model.safetensors"
shards="model-[0-9][0-9][0-9][0-9][0-9]-of-[0-9][0-9][0-9][0-9][0-9].safetensors"

tell() { # REASON MESSAGE
    message=$(printf %s "$2" | "$busybox" tr -d '"\\')
    printf '{"reason": "%s", "message": "%s"}\n' "$1" "$message" | "$busybox" tee "$log"
}

refuse() { # MESSAGE
    tell NotAModel "$1"
    : >"$failed"
    exit 2
}

find_model() {
    folder=
    for candidate in "$root/models" "$root/"; do
        if [ -f "$candidate/config.json" ]; then
            folder=$candidate
            return
        fi
    done
    for candidate in "$root"/models/*/; do
        [ -f "${candidate}config.json" ] || continue
        [ -z "$folder" ] || refuse "several models in the image: $folder, $candidate; allowed: one, in /models"
        folder=$candidate
    done
    [ -n "$folder" ] || refuse "no config.json in /models, in / or in a folder of /models of the image"
}

# Says which weights are there, where none are that an engine reads.
unread_beside() { # MISSING
    [ "$1" != "model*.safetensors" ] || for name in pytorch_model*.bin *.pt *.pth *.gguf *.safetensors; do
        [ ! -f "$name" ] || printf '; %s is not read; allowed: model.safetensors' "$name"
    done
}

# Sets `files`, names in the current folder, and `total`, their bytes.
choose_files() {
    files=
    for name in $needed $optional $shards; do
        [ ! -f "$name" ] || files="$files $name"
    done
    for name in $needed "model*.safetensors"; do
        case "$files " in
        *" "$name" "*) ;;
        *) refuse "no $name in $folder of the image$(unread_beside "$name")" ;;
        esac
    done
    total=0
    for name in $files; do
        [ -r "$name" ] || refuse "$name in $folder of the image cannot be read; allowed: files that everybody may read"
        total=$((total + $("$busybox" stat -L -c %s "$name")))
    done
}

check_space() {
    # What an earlier start has copied is copied again, and takes no room of its own.
    "$busybox" rm -rf "$target"/* "$target/.partial"
    # shellcheck disable=SC2046  (columns)
    set -- $("$busybox" df -P -k "$target" | "$busybox" tail -n 1)
    if [ "$total" -gt $(($4 * 1024)) ]; then
        tell NoSpace "the model has $total bytes, and the engine's volume room for $(($4 * 1024))"
        exit 1
    fi
}

bring() { # NAME
    if [ "$how" = link ]; then
        "$busybox" ln -sf "$PWD/$1" "$target/$1"
    else
        "$busybox" cp "$1" "$target/.partial" &
        child=$!
        wait "$child" && "$busybox" mv "$target/.partial" "$target/$1"
    fi
}

# As process 1 it ends by a signal only with a trap, which waits for what runs in the foreground.
child=
trap '[ -z "$child" ] || kill "$child"; exit 143' TERM
if [ -e "$failed" ]; then
    "$busybox" sleep 2147483647 &
    child=$!
    echo "failed before; waiting for the end of this pod"
    wait "$child"
fi
find_model
cd "$folder" || refuse "$folder of the image cannot be read; allowed: folders that everybody may read"
choose_files
[ "$how" = link ] || check_space
for name in $files; do
    if ! bring "$name"; then
        tell CopyFailed "$name was not copied from $folder of the image; the container's log says why"
        exit 1
    fi
done
tell ModelCopied "$total bytes from $folder of the image"
