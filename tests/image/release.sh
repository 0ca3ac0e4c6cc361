#!/bin/sh
# .ci/release where no registry of images can be reached: a root with this machine's own compiler
# stands in for the base image. It takes the same arguments.
set -eu
cd "$(dirname "$0")/../.."

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
mounts=$(tests/image/stand-in.sh "$dir/base")
# The archive of an image can stand where its name would.
buildah() { command buildah --storage-driver=vfs --root "$dir/store" --runroot "$dir/run" "$@"; }
buildah build --quiet --isolation=chroot --layers=false --timestamp=0 --tag localhost/rust:stand-in \
    --file tests/image/rust.Dockerfile "$dir/base" >/dev/null
buildah push --quiet localhost/rust:stand-in "oci-archive:$dir/rust.tar:stand-in"
RUST_IMAGE=oci-archive:$dir/rust.tar
BUILDAH_OPTIONS="--isolation=chroot $(echo "$mounts" | sed 's/^/--volume=/' | tr '\n' ' ')"
export RUST_IMAGE BUILDAH_OPTIONS
.ci/release "$@"
