# What stands in for the `rust` base image where nothing can be pulled: an almost empty root, over which the test
# mounts this machine's own /usr, toolchain and registry of crates.
FROM scratch
COPY . /
ENV PATH=/toolchain/bin:/usr/bin:/bin \
    CARGO_HOME=/cargo
# The tests ask what is in the image, not how fast it is. Compiled so, the program takes less than half of the time, and
# is larger than the one that is shipped.
ENV CARGO_PROFILE_RELEASE_LTO=off \
    CARGO_PROFILE_RELEASE_OPT_LEVEL=0
