#!/bin/sh
# Makes the image of the project's Dockerfile, without a daemon and without pulling anything: an
# almost empty root with this machine's toolchain stands in for the base image. Its layers, as a
# registry would get them, go to HOME/layers, what they unpack to to HOME/root. Cargo's work stays
# in HOME/target.
#
#   tests/image/build.sh HOME
set -eux
cd "$(dirname "$0")/../.."
home=$1

(cd "$home" && rm -rf base layers root store run)
mounts=$(tests/image/stand-in.sh "$home/base")
mkdir -p "$home/target" "$home/root"
buildah() { nice buildah --storage-driver=vfs --root "$home/store" --runroot "$home/run" "$@"; }
make() { buildah build --isolation=chroot --layers=false "$@"; }

make --timestamp=0 --tag localhost/rust:stand-in --file tests/image/rust.Dockerfile "$home/base"
# shellcheck disable=SC2046 # a list
make --pull-never --format=docker --tag localhost/fencepost:tested --file Dockerfile \
    --build-arg=RUST_IMAGE=localhost/rust:stand-in --build-arg=REVISION=0123abc \
    --volume="$home/target:/build/target" $(echo "$mounts" | sed 's/^/--volume=/') .
buildah push --format=v2s2 localhost/fencepost:tested "dir:$home/layers"
rm -rf "$home/store"
# The configuration comes first.
for layer in $(grep -o 'sha256:[0-9a-f]*' "$home/layers/manifest.json" | sed 's/.*://; 1d'); do
    tar --extract --same-owner --numeric-owner --preserve-permissions --directory "$home/root" \
        --file "$home/layers/$layer"
done
