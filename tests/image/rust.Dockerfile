# What stands in for the `rust` base image where nothing can be pulled: an almost empty root, over which the test
# mounts this machine's own /usr, toolchain and registry of crates.
FROM scratch
COPY . /
ENV PATH=/toolchain/bin:/usr/bin:/bin \
    CARGO_HOME=/cargo
