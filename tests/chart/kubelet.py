"""What a kubelet makes of a pod's manifest: environment, order of the containers, probes, hooks, and the
order in which it ends them. fencepost's containers run; all others are the app, which `node.App` plays.
"""

import http.client
import os
import pathlib
import threading
import time

import yaml

from node import App, NotYet, Wrong, eventually, send
from sandbox import Sandbox, expanded
from volumes import Volumes

POD_IP = "10.77.0.2"


def is_fencepost(container):
    command = container.get("command")
    if command:
        return os.path.basename(command[0]) == "fencepost"
    return container.get("image", "").split("@")[0].split("/")[-1].split(":")[0] == "fencepost"


def pod_template(manifest):
    """The pod's template in a manifest of any kind that has one."""
    if manifest["kind"] == "Pod":
        return manifest
    return manifest.get("spec", {}).get("template")


class Container:
    def __init__(self, spec, kind):
        self.spec = spec
        self.name = spec["name"]
        # init: runs to its end; sidecar: an init container that stays; main
        self.kind = kind
        self.run = None
        self.ended = threading.Event()

    def port(self, port):
        """A port by number or name; a name is looked for in this container alone."""
        if isinstance(port, int) or str(port).isdigit():
            return int(port)
        for declared in self.spec.get("ports", []):
            if declared.get("name") == port:
                return declared["containerPort"]
        raise Wrong(f"container {self.name} has no port {port!r}")


class Pod:
    """The pod of one workload among `manifests`."""

    def __init__(self, workload, manifests, image, work, events, fencepost, files, values, more_env=None):
        self.manifests, self.image, self.events, self.files = manifests, image, events, files
        self.work = pathlib.Path(work)
        self.fencepost = fencepost
        self.values = values
        self.more_env = more_env or {}
        self.name = f"{workload['metadata']['name']}-0"
        self.namespace = workload["metadata"].get("namespace", "default")
        template = pod_template(workload)
        self.metadata = template.get("metadata", {})
        self.spec = template["spec"]
        self.grace = self.spec.get("terminationGracePeriodSeconds", 30)
        claims = {claim["metadata"]["name"] for claim in workload.get("spec", {}).get("volumeClaimTemplates", [])}
        self.volumes = Volumes(self.spec, claims, manifests, self.work / "volumes", self._expected)
        self.containers = []
        for spec in self.spec.get("initContainers", []):
            stays = spec.get("restartPolicy") == "Always"
            self.containers.append(Container(spec, "sidecar" if stays else "init"))
        self.containers += [Container(spec, "main") for spec in self.spec["containers"]]
        self.app = None

    # What a container finds

    def _expected(self, volume):
        """What the containers expect in a volume that the user of the chart brings, by the path in it."""
        expected = {}
        for container in self.fenceposts():
            for mount in container.spec.get("volumeMounts", []):
                if mount["name"] != volume:
                    continue
                for path, value in self.values(self, container).items():
                    inside = os.path.relpath(path, mount["mountPath"])
                    if not inside.startswith(".."):
                        expected[os.path.normpath(os.path.join(mount.get("subPath", ""), inside))] = value
        return expected

    def mounts(self, container):
        """Path in the container: (path here, read only)."""
        mounts = {}
        for mount in container.spec.get("volumeMounts", []):
            outside = os.path.join(self.volumes.directory(mount["name"]), mount.get("subPath", ""))
            read_only = mount.get("readOnly", False) or self.volumes.of_files(mount["name"])
            mounts[mount["mountPath"].rstrip("/")] = (outside.rstrip("/"), read_only)
        return mounts

    def here(self, container, path):
        """Where a file of the container lies here; None if in none of its mounts."""
        for mount in container.spec.get("volumeMounts", []):
            inside = mount["mountPath"].rstrip("/")
            if path == inside or path.startswith(inside + "/"):
                parts = [self.volumes.directory(mount["name"]), mount.get("subPath", ""), path[len(inside) + 1 :]]
                return os.path.join(*filter(None, parts))
        return None

    def env(self, container):
        env = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOSTNAME": self.name}
        env.update(self.image.env)
        if self.spec.get("enableServiceLinks", True):
            for manifest in self.manifests:
                if manifest["kind"] == "Service":
                    env.update(service_links(manifest["metadata"]["name"]))
        env.update(self.more_env)
        for source in container.spec.get("envFrom", []):
            if "configMapRef" in source:
                data = self.volumes.data("ConfigMap", source["configMapRef"]["name"], source["configMapRef"].get("optional"))
                env.update({source.get("prefix", "") + key: value.decode() for key, value in data.items()})
            else:
                raise Wrong(f"envFrom {source} is not played here")
        for variable in container.spec.get("env", []):
            if "valueFrom" not in variable:
                env[variable["name"]] = expanded(variable.get("value", ""), env)
                continue
            source = variable["valueFrom"]
            if "fieldRef" in source:
                env[variable["name"]] = self._field(source["fieldRef"]["fieldPath"])
            elif "configMapKeyRef" in source:
                data = self.volumes.data("ConfigMap", source["configMapKeyRef"]["name"], False)
                env[variable["name"]] = data[source["configMapKeyRef"]["key"]].decode()
            elif "secretKeyRef" in source:
                reference = source["secretKeyRef"]
                data = self.volumes.data("Secret", reference["name"], False)
                value = data[reference["key"]].decode() if data else self.values(self, container).get(variable["name"])
                env[variable["name"]] = value or "unused"
            else:
                raise Wrong(f"{container.name}: env {variable['name']} from {source} is not played here")
        return env

    def _field(self, path):
        fields = {
            "metadata.name": self.name,
            "metadata.namespace": self.namespace,
            "metadata.uid": "6f1c0f3e-0000-4000-8000-000000000000",
            "spec.nodeName": "node",
            "spec.serviceAccountName": self.spec.get("serviceAccountName", "default"),
            "status.podIP": POD_IP,
            "status.hostIP": POD_IP,
        }
        if path not in fields:
            raise Wrong(f"the field {path} is not played here")
        return fields[path]

    def argv(self, container):
        env = self.env(container)
        command, args = container.spec.get("command"), container.spec.get("args")
        if command is None:
            words = self.image.entrypoint + (self.image.cmd if args is None else args)
        else:
            words = command + (args or [])
        return [expanded(word, env) for word in words]

    def config(self, container):
        """What the configuration file of a container says."""
        env = {variable["name"]: variable.get("value") for variable in container.spec.get("env", [])}
        path = env.get("FENCEPOST_CONFIG")
        words = (container.spec.get("command") or []) + (container.spec.get("args") or [])
        if "--config" in words:
            path = words[words.index("--config") + 1]
        if path is None:
            return {}
        here = self.here(container, path)
        if here is None:
            raise Wrong(f"{container.name}: nothing is mounted at {path}")
        return yaml.safe_load(pathlib.Path(here).read_text())

    # How it lives

    def begin(self, container):
        security = {**self.spec.get("securityContext", {}), **container.spec.get("securityContext", {})}
        group = security.get("fsGroup")
        container.run = Sandbox(
            container.name, self.argv(container), self.env(container), self.mounts(container), self.image, security,
            [group] if group is not None else [], {"/fencepost": self.fencepost, **self.files},
            self.work / f"{container.name}.log",
        )
        self.events.add(f"{container.name} started")

    def fenceposts(self):
        return [container for container in self.containers if is_fencepost(container.spec)]

    def app_container(self, port):
        """The container that fencepost stands in front of: the one with its port, or else the first one."""
        others = [one for one in self.containers if one.kind == "main" and not is_fencepost(one.spec)]
        declares = [one for one in others if port in [at["containerPort"] for at in one.spec.get("ports", [])]]
        return next(iter(declares + others), None)

    def start(self, app_address):
        """In the order of a kubelet: init containers one by one, a sidecar until its startup probe succeeds; then
        all others at once."""
        for container in self.containers:
            if container.kind == "main":
                continue
            if not is_fencepost(container.spec):
                if container.kind == "sidecar":
                    raise Wrong(f"sidecar {container.name} is not played here")
                continue
            self.begin(container)
            if container.kind == "init":
                self.complete(container)
            elif "startupProbe" in container.spec:
                self.wait_for(container, "startupProbe")
        self.app = App(app_address, self.events)
        for container in self.containers:
            if container.kind == "main" and is_fencepost(container.spec):
                self.begin(container)
        for container in self.fenceposts():
            for probe in ("startupProbe", "readinessProbe"):
                if container.kind != "init" and probe in container.spec:
                    self.wait_for(container, probe)

    def complete(self, container):
        """Runs it to its end, which has to be a good one."""
        code = container.run.exit_code()
        if code != 0:
            raise Wrong(f"{container.name} exited with {code}: {container.run.output()}")

    def wait_for(self, container, probe):
        def answered():
            if not container.run.runs():
                raise Wrong(f"{container.name} ended by itself: {container.run.output()}")
            try:
                self.probe(container, probe)
            except (OSError, http.client.HTTPException, NotYet):
                return False
            return True

        eventually(f"the {probe} of {container.name}", answered)

    def probe(self, container, name):
        """Once; raises where it does not succeed."""
        return self.handle(container, container.spec[name], name)

    def handle(self, container, handler, name):
        """What a probe or a hook says is to be done."""
        if "httpGet" in handler:
            get = handler["httpGet"]
            if get.get("scheme", "HTTP") != "HTTP" or "host" in get:
                raise Wrong(f"{container.name}: {name} asks {get}: not this pod's admin port")
            headers = {header["name"]: header["value"] for header in get.get("httpHeaders", [])}
            address = (POD_IP, container.port(get["port"]))
            answer = send(address, "GET", get.get("path", "/"), headers)
            if answer.status != 200:
                raise NotYet(f"{container.name}: {name} {get['path']} on {address}: {answer}")
        elif "exec" in handler:
            if not is_fencepost(container.spec):
                raise Wrong(f"{container.name}: {name} runs {handler['exec']['command']} in an image we do not know")
            container.run.execute(handler["exec"]["command"])
        elif "sleep" in handler:
            time.sleep(handler["sleep"]["seconds"])
        else:
            raise Wrong(f"{container.name}: {name} {handler} is not played here")

    # How it ends

    def terminate(self):
        """As a kubelet does it: all preStop hooks at once; SIGTERM to a container after its hook, to a sidecar
        only once the containers that it serves have ended; SIGKILL at the end of the grace period."""
        deadline = time.monotonic() + self.grace
        wrongs = []

        def end(container):
            hook = container.spec.get("lifecycle", {}).get("preStop")
            try:
                if hook:
                    self.handle(container, hook, "preStop")
                    self.events.add(f"{container.name}: preStop is over")
                if container.kind == "sidecar":
                    for other in self.containers:
                        if other.kind == "main":
                            other.ended.wait(deadline - time.monotonic())
                self.events.add(f"{container.name}: SIGTERM")
                if is_fencepost(container.spec):
                    container.run.terminate()
                    code = container.run.exit_code(deadline - time.monotonic())
                    self.events.add(f"{container.name}: ended")
                    if code != 0:
                        raise Wrong(f"{container.name} exited with {code} at SIGTERM: {container.run.output()}")
            except Exception as wrong:  # noqa: BLE001: told below, in the thread that asked
                wrongs.append(wrong)
            finally:
                container.ended.set()

        threads = [
            threading.Thread(target=end, args=[one], daemon=True) for one in self.containers if one.kind != "init"
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for wrong in wrongs:
            raise wrong

    def kill(self):
        for container in self.containers:
            if container.run:
                container.run.kill()
        if self.app:
            self.app.end()


def service_links(name):
    """The variables that Kubernetes puts into a pod beside a Service of this name."""
    word = name.upper().replace("-", "_")
    return {
        f"{word}_SERVICE_HOST": "10.96.0.7",
        f"{word}_SERVICE_PORT": "80",
        f"{word}_PORT": "tcp://10.96.0.7:80",
        f"{word}_PORT_80_TCP": "tcp://10.96.0.7:80",
        f"{word}_PORT_80_TCP_PROTO": "tcp",
        f"{word}_PORT_80_TCP_PORT": "80",
        f"{word}_PORT_80_TCP_ADDR": "10.96.0.7",
    }
