"""The volumes of a pod as a kubelet makes them: links through `..data`, modes, and the group of `fsGroup`."""

import base64
import os
import pathlib

from node import Wrong
from sandbox import OWNERS

FILES = ("configMap", "secret", "projected", "downwardAPI")


class Volumes:
    """`expected` tells what is in a Secret that the user of the chart brings: the values by their path in the volume."""

    def __init__(self, spec, claims, manifests, work, expected):
        self.found = {volume["name"]: volume for volume in spec.get("volumes", [])}
        self.claims, self.manifests, self.expected = claims, manifests, expected
        self.group = spec.get("securityContext", {}).get("fsGroup")
        self.work = pathlib.Path(work)
        self.made = {}

    def data(self, kind, name, optional=False):
        """What a ConfigMap or a Secret holds, as bytes; None for a Secret that the user brings."""
        for manifest in self.manifests:
            if manifest["kind"] == kind and manifest["metadata"]["name"] == name:
                break
        else:
            if kind == "Secret":
                return None
            if optional:
                return {}
            raise Wrong(f"{kind} {name} is not among what is rendered")
        plain = "data" if kind == "ConfigMap" else "stringData"
        coded = "binaryData" if kind == "ConfigMap" else "data"
        data = {key: base64.b64decode(value) for key, value in (manifest.get(coded) or {}).items()}
        return {**data, **{key: value.encode() for key, value in (manifest.get(plain) or {}).items()}}

    def of_files(self, name):
        """Whether it is made of files that nobody may write."""
        return any(kind in self.found.get(name, {}) for kind in FILES)

    def directory(self, name):
        """Where a volume lies here; it is made at its first use."""
        if name not in self.made:
            if name not in self.found and name not in self.claims:
                raise Wrong(f"there is no volume {name!r}")
            directory = self.work / name
            directory.mkdir(parents=True)
            self._fill(directory, self.found.get(name, {"persistentVolumeClaim": {}}))
            self.made[name] = str(directory)
        return self.made[name]

    def _fill(self, directory, volume):
        if any(kind in volume for kind in FILES):
            self._write(directory, *self._files(volume, volume["name"]))
        elif "emptyDir" in volume:
            directory.chmod(0o777)
        elif "persistentVolumeClaim" in volume or "ephemeral" in volume:
            # A fresh file system belongs to root.
            directory.chmod(0o755 if self.group is None else 0o2775)
        else:
            raise Wrong(f"a volume of this kind is not played here: {volume}")
        self._own(directory)

    def _files(self, volume, name):
        """The content by path, and the mode."""
        if "projected" in volume:
            files = {}
            for part in volume["projected"]["sources"]:
                if "secret" in part:
                    part = {"secret": {**part["secret"], "secretName": part["secret"]["name"]}}
                files.update(self._files(part, name)[0])
            return files, volume["projected"].get("defaultMode", 0o644)
        if "configMap" in volume:
            source = volume["configMap"]
            data = self.data("ConfigMap", source["name"], source.get("optional"))
        elif "secret" in volume:
            source = volume["secret"]
            data = self.data("Secret", source["secretName"])
        else:
            raise Wrong(f"a volume of this kind is not played here: {volume}")
        mode, items = source.get("defaultMode", 0o644), source.get("items")
        if data is None:
            expected = {path: value.encode() for path, value in self.expected(name).items()}
            if items is None:
                return expected, mode
            # A key that is not taken out of the Secret is not there, whoever expects it.
            return {item["path"]: expected.get(item["path"], b"unused") for item in items}, mode
        if items is not None:
            data = {item["path"]: data[item["key"]] for item in items}
        return data, mode

    def _write(self, directory, files, mode):
        data = directory / "..2026_11_21"
        data.mkdir()
        (directory / "..data").symlink_to(data.name)
        for path, content in files.items():
            file = data / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
            file.chmod(mode if self.group is None else mode | 0o440)
            self._own(file)
            top = directory / path.split("/")[0]
            if not top.is_symlink():
                top.symlink_to(f"..data/{top.name}")
        data.chmod(0o755)
        directory.chmod(0o755)

    def _own(self, path):
        if OWNERS:
            os.chown(path, 0, self.group or 0)
