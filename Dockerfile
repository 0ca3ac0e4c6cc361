# fencepost as an image: one static binary, CA roots, and a directory for the marks. It has no
# shell, no libc and no package manager. Nothing writes outside of /var/lib/fencepost, so a
# read-only root works.
#
#   docker build -t fencepost --build-arg COMMIT="$(git rev-parse --short=12 HEAD)" .
#   docker run --read-only -v fencepost-marks:/var/lib/fencepost -v ./fencepost.yaml:/etc/fencepost/fencepost.yaml:ro \
#     -e FENCEPOST_CONFIG=/etc/fencepost/fencepost.yaml -p 7080:7080 fencepost
#
# Podman and buildah build the same (`buildah build -f Dockerfile .`; `--format docker` keeps the
# health check).
#
# The base is pinned by its digest, so a tag that moves changes nothing here. The tag beside the
# digest is for readers only. To use a newer base, look up the digest of its tag, and write both
# into the line below:
#
#   docker buildx imagetools inspect rust:1.95.0-slim-bookworm --format '{{.Manifest.Digest}}'
ARG RUST_IMAGE=rust:1.95.0-slim-bookworm@sha256:d7482085ff5b415f84dba5647ae71606650bdef00db7aeb69f4b3d170c3e4082

FROM ${RUST_IMAGE} AS build

# Linked statically with glibc, whose resolver (2.34 and later) reads /etc/hosts and queries DNS
# without loading a library. --target keeps the flag away from procedural macros, which are shared
# objects.
ENV RUSTFLAGS="-C target-feature=+crt-static"

# Parts of SQLite that nothing here uses: 2 % of the program.
ENV LIBSQLITE3_FLAGS="-USQLITE_ENABLE_FTS3 -USQLITE_ENABLE_FTS3_PARENTHESIS -USQLITE_ENABLE_FTS5 -USQLITE_ENABLE_RTREE -USQLITE_ENABLE_DBSTAT_VTAB -USQLITE_SOUNDEX"

WORKDIR /build

# The dependencies are a layer of their own, which changes only with the manifests.
COPY Cargo.toml Cargo.lock ./
COPY benches/today/Cargo.toml benches/today/
COPY conformance/Cargo.toml conformance/
COPY fuzz/Cargo.toml fuzz/
COPY tests/model/Cargo.toml tests/model/
COPY vendor vendor
RUN mkdir -p src benches/today/src conformance/src fuzz/src tests/model/src \
    && touch src/lib.rs benches/today/src/main.rs conformance/src/main.rs fuzz/src/lib.rs tests/model/src/lib.rs \
    && echo 'fn main() {}' >src/main.rs \
    && cargo build --release --locked --bin fencepost --target "$(rustc --print host-tuple)"

# Cargo's output for the empty sources above is newer than these files, so touch them. Packed
# relocations make the program 3 % smaller to load.
COPY build.rs ./
COPY src src
ARG COMMIT=unknown
RUN touch build.rs src/lib.rs src/main.rs \
    && export FENCEPOST_COMMIT="${COMMIT}" \
    && cargo rustc --release --locked --bin fencepost --target "$(rustc --print host-tuple)" -- \
        -C link-arg=-Wl,-z,pack-relative-relocs

# /out/root belongs to root, and no other user can write there. The directories in /out/state belong
# to fencepost.
COPY LICENSE ./
RUN mkdir -p /out/root/etc/ssl/certs /out/root/etc/fencepost /out/root/var/lib /out/state/fencepost \
    && install -m 0555 -s "target/$(rustc --print host-tuple)/release/fencepost" /out/root/fencepost \
    && install -m 0444 LICENSE /out/root/LICENSE \
    && install -m 0444 /etc/ssl/certs/ca-certificates.crt /out/root/etc/ssl/certs/ca-certificates.crt \
    && echo 'fencepost:x:65532:65532:fencepost:/var/lib/fencepost:/sbin/nologin' >/out/root/etc/passwd \
    && echo 'fencepost:x:65532:' >/out/root/etc/group \
    && echo 'hosts: files dns' >/out/root/etc/nsswitch.conf \
    && chmod 0700 /out/state/fencepost

FROM scratch

COPY --from=build /out/root/ /
COPY --from=build --chown=65532:65532 /out/state/ /var/lib/

ARG VERSION=0.1.0
ARG REVISION=unknown
ARG SOURCE=unknown
LABEL org.opencontainers.image.title="fencepost" \
    org.opencontainers.image.description="A sidecar HTTP reverse proxy that checks fencing tokens for services that cannot." \
    org.opencontainers.image.licenses="Apache-2.0" \
    org.opencontainers.image.version="${VERSION}" \
    org.opencontainers.image.revision="${REVISION}" \
    org.opencontainers.image.source="${SOURCE}"

# The program listens on the loopback by default, which cannot be reached from outside a container.
# The configuration file overrides both variables. On the admin port, probes and metrics are open;
# keys and marks can be read from inside (`fencepost marks`), or with a token.
ENV FENCEPOST_DEFAULT_LISTEN=0.0.0.0:7080 \
    FENCEPOST_DEFAULT_ADMIN_LISTEN=0.0.0.0:7081
EXPOSE 7080 7081

# The directory of `sqlite:` with a relative path, and of SQLite's temporary files. There is no
# VOLUME, on purpose: an anonymous volume, and the marks in it, would be deleted with its container.
# Mount a named one.
USER 65532:65532
WORKDIR /var/lib/fencepost

STOPSIGNAL SIGTERM
# It finds the admin port through FENCEPOST_CONFIG. A file with `admin.listen: off` needs
# `docker run --no-healthcheck`.
HEALTHCHECK --interval=10s --timeout=6s --start-period=10s --retries=3 CMD ["/fencepost", "health"]
ENTRYPOINT ["/fencepost"]
CMD ["serve"]
