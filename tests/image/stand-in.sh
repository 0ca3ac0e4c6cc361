#!/bin/sh
# Lays out a root that stands in for the `rust` base image where nothing can be pulled: an almost
# empty directory, over which buildah mounts this machine's own /usr, toolchain and registry of
# crates. tests/image/rust.Dockerfile makes an image of it.
#
#   tests/image/stand-in.sh DIRECTORY
#
# DIRECTORY must be new. Prints what to mount, one volume a line, as `buildah build --volume` takes
# it.
set -eu

base=$1
roots=etc/ssl/certs/ca-certificates.crt
mkdir -p "$base/etc/ssl/certs" "$base/etc/alternatives" "$base/tmp" "$base/usr"
chmod 1777 "$base/tmp"
echo 'root:x:0:0::/:/bin/sh' >"$base/etc/passwd"
cp "/$roots" "$base/$roots"

echo /usr:/usr:ro
echo /etc/alternatives:/etc/alternatives:ro
for dir in bin sbin lib lib64; do
    if [ -L "/$dir" ]; then
        ln -s "$(readlink "/$dir")" "$base/$dir"
    elif [ -e "/$dir" ]; then
        echo "/$dir:/$dir:ro"
    fi
done
echo "$(rustc --print sysroot):/toolchain:ro"
home=${CARGO_HOME:-$HOME/.cargo}
for part in registry config.toml; do
    [ ! -e "$home/$part" ] || echo "$home/$part:/cargo/$part"
done
