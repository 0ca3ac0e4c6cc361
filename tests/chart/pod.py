"""Starts what a render would start, and looks whether it fences and leaves in order.

    pod.py --fencepost BINARY (--manifests FILE | --values FILE...) [--dsn URL --owner URL --socket FILE] [--service-links]
        every workload of the render that has fencepost in it: its hook Jobs; its containers with exactly their
        command, environment, mounts and user; every probe, scrape and Service by the pod's address; 42 passes and
        41 does not; then the pod is ended as a kubelet ends it, with a request in flight

Run it in namespaces of its own, which take everything along at its end, however it comes:

    unshare --net --mount --pid --fork --kill-child --mount-proc [--map-root-user] python3 pod.py ...

--dsn is for the role at run time, --owner for the one that may do DDL; both over the Unix socket --socket.
"""

import argparse
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import urllib.parse

import yaml

import tool
from departure import Departure
from kubelet import POD_IP, Pod, is_fencepost, pod_template, service_links
from node import Events, Wrong, add_address, eventually, loopback_up, send
from sandbox import Image

# Where the Service that a gateway stands in front of has its address.
SERVICE_IP = "10.77.0.3"

ADMIN_TOKEN = "only-for-tests-of-ours"

# The exit code where a render wants a Postgres and none was named.
NO_POSTGRES = 77


class NoPostgres(Exception):
    """The render wants a Postgres, and there is none."""


# A token as each `token.format` has it.
FORMATS = {
    "decimal": str,
    "hex": "{:#x}".format,
    "after-hash": "lock#{}".format,
    "prefix-hex16": "{:016x}-of-a-lock".format,
}


class Traffic:
    """Requests that a route of the configuration judges."""

    def __init__(self, route, config):
        self.enforces = route.get("mode", "enforce") == "enforce"
        self.method = next((one for one in route.get("methods", []) if one not in ("GET", "HEAD", "OPTIONS")), "PUT")
        self.target = re.sub(r"\{[^}]*\}", "7", route["path"])
        self.spelt = FORMATS[route.get("token", {}).get("format", "decimal")]
        self.headers, members = {}, {}
        for kind, name in re.findall(r"\{(header|query|json)\.([^}|]*)", route.get("resource", "")):
            if kind == "header":
                self.headers[name] = "7"
            elif kind == "query":
                self.target += ("&" if "?" in self.target else "?") + f"{name}=7"
            else:
                members[name] = "7"
        self.body = json.dumps(members)
        if members:
            self.headers["Content-Type"] = "application/json"
        self.stale_status = config.get("stale_status", 412)

    def send(self, address, token, more=None):
        headers = {**self.headers, "X-Fencing-Token": self.spelt(token), **(more or {})}
        return send(address, self.method, self.target, headers, self.body)


class Story:
    """One workload of a render."""

    def __init__(self, args, manifests, workload, work, image):
        self.args, self.manifests, self.workload, self.image = args, manifests, workload, image
        self.work = pathlib.Path(work)
        self.events = Events()
        self.pod = self.make(workload)
        serving = [one for one in self.pod.fenceposts() if one.kind != "init"]
        if len(serving) != 1:
            raise Wrong(f"not one fencepost in the pod: {[one.name for one in serving]}")
        self.proxy = serving[0]
        self.config = self.pod.config(self.proxy)
        self.upstream = self.pod.env(self.proxy).get("FENCEPOST_UPSTREAM") or self.config["upstream"]["url"]

    def make(self, workload):
        work = self.work / "pods" / f"{workload['kind']}-{workload['metadata']['name']}"
        work.mkdir(parents=True)
        more = service_links("fencepost") if self.args.service_links else {}
        files = {"/etc/hosts": str(self.work / "hosts"), "/etc/nsswitch.conf": str(self.work / "nsswitch.conf")}
        if self.args.socket:
            files["/run/postgresql"] = str(self.work / "postgresql")
        return Pod(
            workload, self.manifests, self.image, work, self.events, str(self.work / "fencepost"), files,
            self.values, more,
        )

    def values(self, pod, container):
        """What a container expects in the files and variables that the user of the chart brings."""
        config = pod.config(container)
        words = (container.spec.get("command") or []) + (container.spec.get("args") or [])
        # Where something else migrates, the role at run time may not.
        owner = "migrate" in words or config.get("store", {}).get("migrate", True)
        dsn = self.args.owner if owner else self.args.dsn
        if dsn and not owner and self.granted():
            # The role that the render grants to; only those grants are its own.
            dsn = re.sub("//[^@]*@", f"//{self.granted()}@", dsn)
        values = {"FENCEPOST_STORE": dsn} if dsn else {}
        secrets = [("store", "url_file", dsn)]
        secrets += [("admin", field, ADMIN_TOKEN) for field in ("token_file", "read_token_file")]
        for section, field, value in secrets:
            if field in config.get(section, {}):
                if value is None:
                    raise NoPostgres
                values[config[section][field]] = value
        return values

    def granted(self):
        """The role that a Job of the render gives what `serve` needs; None if it gives nothing."""
        for job in [one for one in self.manifests if one["kind"] == "Job" and self.fences(one)]:
            for container in pod_template(job)["spec"]["containers"]:
                words = container.get("args") or []
                for word, role in zip(words, [*words[1:], ""]):
                    if word.startswith("--grant-to"):
                        return word.partition("=")[2] or role
        return None

    # Before the pod

    def hosts(self):
        """The pod's /etc/hosts, with the Services that it asks for; returns where the app is to listen."""
        lines = ["127.0.0.1 localhost", f"{POD_IP} {self.pod.name}"]
        url = urllib.parse.urlsplit(self.upstream)
        address = (SERVICE_IP, url.port or 80)
        if url.scheme == "unix":
            address = self.pod.here(self.proxy, url.path)
        elif url.scheme not in ("http", "h2c"):
            raise Wrong(f"an app at {self.upstream} is not played here")
        elif url.hostname in ("127.0.0.1", "localhost"):
            address = ("0.0.0.0", url.port or 80)  # noqa: S104: as a legacy app does it
        else:
            lines.append(f"{SERVICE_IP} {url.hostname}")
        (self.work / "hosts").write_text("\n".join(lines) + "\n")
        (self.work / "nsswitch.conf").write_text("hosts: files\n")
        return address

    def migrations(self):
        """The hook Jobs, each run to its end; or, where the schema is nobody's business in the render, by hand."""
        jobs = [one for one in self.manifests if one["kind"] == "Job" and self.fences(one)]
        for job in jobs:
            hook = job["metadata"].get("annotations", {}).get("helm.sh/hook", "")
            if not ("pre-install" in hook and "pre-upgrade" in hook):
                raise Wrong(f"Job {job['metadata']['name']} does not run before the pods: hook {hook!r}")
            pod = self.make(job)
            for container in pod.fenceposts():
                pod.begin(container)
                pod.complete(container)
            self.tell(f"Job {job['metadata']['name']} has migrated")
        if not jobs and not self.config.get("store", {}).get("migrate", True):
            config = self.work / "migrate.yaml"
            config.write_text(yaml.safe_dump({**self.config, "store": {
                "url": self.args.owner.replace("/run/postgresql", str(self.work / "postgresql")),
                "namespace": self.config["store"]["namespace"],
            }, "admin": {}}))
            subprocess.run([self.work / "fencepost", "migrate", "--config", config], check=True, timeout=60)

    @staticmethod
    def fences(manifest):
        template = pod_template(manifest) if manifest["kind"] != "CronJob" else None
        spec = (template or {}).get("spec", {})
        return any(is_fencepost(one) for one in spec.get("initContainers", []) + spec.get("containers", []))

    # The pod

    def play(self):
        address = self.hosts()
        self.migrations()
        try:
            self.pod.start(address)
            self.app = self.pod.app
            self.asked()
            data = self.data_address()
            self.fenced(data)
            Departure(self, data).play()
            self.tell(f"left in order ({self.proxy.kind})")
        finally:
            self.pod.kill()

    def asked(self):
        """Every probe, hook and scrape, by the pod's address."""
        probes = 0
        for container in self.pod.containers:
            for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
                if container.kind != "init" and probe in container.spec:
                    self.pod.probe(container, probe)
                    probes += is_fencepost(container.spec)
        if probes < 2:
            raise Wrong("fencepost has no readiness and liveness probe")
        self.proxy.run.execute(["/fencepost", "health"])
        scrapes = list(self.scrapes())
        for port, path in scrapes:
            answer = send((POD_IP, port), "GET", path)
            if answer.status != 200 or "fencepost_build_info" not in answer.body:
                raise Wrong(f"the scrape of {path} on {port}: {answer}")
        policies = self.closed()
        self.tell(f"{probes} probes, {len(scrapes)} scrapes, {policies} network policies")

    def closed(self):
        """Where a NetworkPolicy is about this pod: the data port is open, the app's is not."""
        policies = [
            one["spec"] for one in self.manifests
            if one["kind"] == "NetworkPolicy" and self.selected(one["spec"]["podSelector"].get("matchLabels"))
        ]
        if not policies:
            return 0
        rules = [rule for policy in policies for rule in policy.get("ingress", [])]
        if any("ports" not in rule for rule in rules):
            raise Wrong(f"a NetworkPolicy opens every port: {rules}")
        allowed = {self.pod_port(port["port"]) for rule in rules for port in rule["ports"]}
        data, app = self.proxy.port("fencepost"), urllib.parse.urlsplit(self.upstream).port
        if data not in allowed or (app in allowed and self.pod.app_container(app)):
            raise Wrong(f"network policies open {allowed}; the data port is {data}, the app's {app}")
        return len(policies)

    def selected(self, selector):
        labels = self.pod.metadata.get("labels", {})
        return selector and all(labels.get(key) == value for key, value in selector.items())

    def pod_port(self, port, kinds=("init", "sidecar", "main")):
        """A port of the pod by number or name: Prometheus looks in all containers, and an older Kubernetes for a
        Service only in the main ones."""
        for container in [one for one in self.pod.containers if isinstance(port, int) or one.kind in kinds]:
            try:
                return container.port(port)
            except Wrong:
                continue
        raise Wrong(f"no container has a port {port!r}")

    def services(self):
        """Every (Service, port of it, port of the pod) that leads into the pod."""
        for manifest in self.manifests:
            if manifest["kind"] == "Service" and self.selected(manifest["spec"].get("selector")):
                for port in manifest["spec"]["ports"]:
                    headless = manifest["spec"].get("clusterIP") == "None"
                    target = port["port"] if headless else port.get("targetPort", port["port"])
                    yield manifest, port, self.pod_port(target, kinds=("main",))

    def scrapes(self):
        for manifest in self.manifests:
            spec = manifest.get("spec", {})
            if manifest["kind"] == "PodMonitor" and self.selected(spec["selector"].get("matchLabels")):
                for endpoint in spec["podMetricsEndpoints"]:
                    yield self.pod_port(endpoint["port"]), endpoint.get("path", "/metrics")
            elif manifest["kind"] == "ServiceMonitor":
                wanted = spec["selector"].get("matchLabels", {})
                for service, port, target in self.services():
                    labels = service["metadata"].get("labels", {})
                    if all(labels.get(key) == value for key, value in wanted.items()):
                        for endpoint in spec["endpoints"]:
                            if endpoint["port"] == port.get("name"):
                                yield target, endpoint.get("path", "/metrics")
        annotations = self.pod.metadata.get("annotations", {})
        if annotations.get("prometheus.io/scrape") == "true":
            yield int(annotations["prometheus.io/port"]), annotations.get("prometheus.io/path", "/metrics")

    def data_address(self):
        """Where clients reach the data port. Every Service that leads into the pod leads there, or to the admin port."""
        own = self.proxy.port("fencepost")
        admin = self.proxy.port("fencepost-admin")
        for service, port, target in self.services():
            if target == admin:
                if send((POD_IP, target), "GET", "/livez").status != 200:
                    raise Wrong(f"Service {service['metadata']['name']}: {port} does not reach the admin port")
            elif target != own:
                raise Wrong(f"Service {service['metadata']['name']} leads past fencepost, to {target}")
        self.admin = (POD_IP, admin)
        return (POD_IP, own)

    def fenced(self, data):
        """On every route: 42 passes, and then 41 does not; without a token only what the route lets through."""
        routes = self.config.get("routes") or [{"path": "/{*path}"}]
        judged = [route for route in routes if route.get("mode", "enforce") != "bypass"]
        if not judged:
            raise Wrong(f"no route of {routes} is fenced")
        # Routes may share a resource; its tokens rise.
        for number, route in enumerate(judged):
            self.judge(Traffic(route, self.config), data, 42 + 2 * number)
        for route in [one for one in routes if one not in judged]:
            target = re.sub(r"\{[^}]*\}", "7", route["path"])
            answer = send(data, "PUT", target)
            if answer.status != 200:
                raise Wrong(f"{target} is in mode bypass: {answer}")
        self.traffic = Traffic(judged[0], self.config)
        self.token = 42 + 2 * len(judged)

    def judge(self, traffic, data, token):
        new = traffic.send(data, token)
        if new.status != 200 or new.body != "from the app":
            raise Wrong(f"{token} does not pass {traffic.target}: {new}")
        # Where nothing is enforced the check is made beside the request.
        if not traffic.enforces:
            eventually(f"{token} to be counted", lambda: self.counts("advanced"))
        old = traffic.send(data, token - 1)
        if old.status != (traffic.stale_status if traffic.enforces else 200):
            raise Wrong(f"{token - 1} after {token}: {old}")
        arrived = [one for one in self.app.arrivals if one[:2] == (traffic.method, traffic.target)]
        if len(arrived) != (1 if traffic.enforces else 2):
            raise Wrong(f"at the app: {self.app.arrivals}")
        if not traffic.enforces:
            eventually(f"{token - 1} to be counted", lambda: self.counts("observed-stale-token"))
        self.tell(f"{traffic.method} {traffic.target}: {token} passes, {token - 1} gets {old.status}")

    def counts(self, outcome):
        return re.search(rf'requests_total\{{outcome="{outcome}",.*\}} 1', send(self.admin, "GET", "/metrics").body)

    def tell(self, what):
        print(f"  {self.workload['kind']} {self.workload['metadata']['name']}: {what}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fencepost", required=True)
    parser.add_argument("--manifests")
    parser.add_argument("--values", nargs="*", default=[])
    parser.add_argument("--dsn")
    parser.add_argument("--owner")
    parser.add_argument("--socket")
    parser.add_argument("--service-links", action="store_true")
    args = parser.parse_args()
    if args.manifests:
        manifests = [one for one in yaml.safe_load_all(pathlib.Path(args.manifests).read_text()) if one]
    else:
        manifests = [one for _, one in tool.render(tool.CHART, tool.values_of(args.values, []))]
    loopback_up()
    add_address(1, POD_IP)
    add_address(2, SERVICE_IP)
    played = 0
    with tempfile.TemporaryDirectory(prefix="fencepost-pod-") as work:
        pathlib.Path(work).chmod(0o755)
        # The user of the image may not be able to reach them where they lie; the namespace goes
        # with this process.
        work = pathlib.Path(work)
        bound = [bind(args.fencepost, work / "fencepost")]
        if args.socket:
            bound.append(bind(args.socket, work / "postgresql" / pathlib.Path(args.socket).name))
        image = Image(tool.TOP / "Dockerfile")
        try:
            for manifest in manifests:
                if manifest["kind"] != "Job" and pod_template(manifest) and Story.fences(manifest):
                    Story(args, manifests, manifest, work, image).play()
                    played += 1
            if not any(pod_template(one) for one in manifests):
                print("no pods in it")
            elif not played:
                raise Wrong("there is no fencepost in what is rendered")
        except NoPostgres:
            print("it wants a Postgres, and none was named")
            sys.exit(NO_POSTGRES)
        except Wrong as wrong:
            sys.exit(f"{args.manifests or args.values}: {wrong}")
        finally:
            for mounted in bound:
                subprocess.run(["umount", "--lazy", mounted], check=True)


def bind(source, target):
    target.parent.mkdir(exist_ok=True)
    target.touch()
    subprocess.run(["mount", "--bind", source, target], check=True)
    return target


if __name__ == "__main__":
    main()
