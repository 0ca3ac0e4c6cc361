"""What no schema says of a render: that its parts fit each other, and that the pod is the one that fences."""

import re

import yaml

PODS = ("Deployment", "StatefulSet", "Job")
UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600}
TOKEN = "/var/run/secrets/kubernetes.io/serviceaccount"


def seconds(text):
    return sum(int(count) * UNITS[unit] for count, unit in re.findall(r"([0-9]+)\s*([a-z]+)", text))


def pod_of(manifest):
    return manifest["spec"]["template"] if manifest["kind"] in PODS else None


def containers(pod):
    return [*pod["spec"].get("initContainers", []), *pod["spec"]["containers"]]


def fenceposts(pod):
    return [c for c in containers(pod) if c["name"] == "fencepost"]


def matches(selector, labels):
    return bool(selector) and selector.items() <= labels.items()


def port_named(pod, name):
    return [(c, port["containerPort"]) for c in containers(pod) for port in c.get("ports", [])
            if port.get("name") == name or port["containerPort"] == name]


def problems(manifests):
    """Everything that does not fit, in words."""
    config = next(yaml.safe_load(m["data"]["fencepost.yaml"]) for m in manifests
                  if m["kind"] == "ConfigMap" and "fencepost.yaml" in m["data"] and not hook(m))
    pods = [m for m in manifests if m["kind"] in PODS and not hook(m)]
    names = [(m["kind"], m["metadata"].get("namespace"), m["metadata"]["name"]) for m in manifests]
    yield from (f"{name} is there twice" for name in set(names) if names.count(name) > 1)
    for manifest in manifests:
        called = f"{manifest['kind']}/{manifest['metadata']['name']}"
        for problem in of_one(manifest, manifests, pods, config):
            yield f"{called}: {problem}"


def hook(manifest):
    return manifest["metadata"].get("annotations", {}).get("helm.sh/hook")


def of_one(manifest, manifests, pods, config):
    kind, spec = manifest["kind"], manifest.get("spec", {})
    if kind in PODS:
        yield from of_pod(manifest)
        yield from (of_job(manifest, manifests) if kind == "Job" else of_workload(manifest, config))
    elif kind == "ConfigMap" and re.search(r"postgres(ql)?://|password", manifest["data"].get("fencepost.yaml", "")):
        yield "a ConfigMap is no place for the URL of a database"
    elif kind == "Service":
        yield from of_service(manifest, pods)
    elif kind in ("PodDisruptionBudget", "PodMonitor") and pods:
        if not any(matches(spec["selector"]["matchLabels"], p["spec"]["template"]["metadata"]["labels"]) for p in pods):
            yield "it selects no pod"
        for endpoint in spec.get("podMetricsEndpoints", []):
            if not all(port_named(pod_of(p), endpoint["port"]) for p in pods):
                yield f"no container has a port {endpoint['port']}"
    elif kind == "ServiceMonitor":
        chosen = [m for m in manifests if m["kind"] == "Service"
                  and matches(spec["selector"]["matchLabels"], m["metadata"].get("labels", {}))]
        if len(chosen) != 1 or spec["endpoints"][0]["port"] not in [p["name"] for p in chosen[0]["spec"]["ports"]]:
            yield f"it selects {len(chosen)} Services, or a port that they do not have"
    elif kind == "HorizontalPodAutoscaler":
        target = spec["scaleTargetRef"]
        chosen = [p for p in pods if (p["kind"], p["metadata"]["name"]) == (target["kind"], target["name"])]
        if not chosen or "replicas" in chosen[0]["spec"]:
            yield "its target is not there, or has a count of its own that each upgrade would set"
    elif kind == "NetworkPolicy":
        yield from of_policy(manifest, manifests, pods, config)


def of_pod(manifest):
    """Of the pod of anything."""
    pod = pod_of(manifest)
    spec = pod["spec"]
    if spec.get("enableServiceLinks") is not False:
        yield "enableServiceLinks is not false"
    ours = [c for c in containers(pod) if c["name"] in ("fencepost", "migrate")]
    alone = len(ours) == len(containers(pod))
    if alone and spec.get("automountServiceAccountToken") is not False:
        yield "the service account's token is mounted"
    if alone:
        yield from restricted(spec.get("securityContext", {}), "the pod", pod=True)
    volumes = {volume["name"]: volume for volume in spec.get("volumes", [])}
    claims = {claim["metadata"]["name"] for claim in manifest["spec"].get("volumeClaimTemplates", [])}
    if len(volumes) != len(spec.get("volumes", [])) or volumes.keys() & claims:
        yield "two volumes of one name"
    for container in containers(pod):
        for mount in container.get("volumeMounts", []):
            if mount["name"] not in volumes.keys() | claims:
                yield f"{container['name']} mounts {mount['name']}, which the pod has not"
    ports = [port["containerPort"] for c in containers(pod) for port in c.get("ports", [])]
    if len(ports) != len(set(ports)):
        yield f"two containers have one port: {ports}"
    for container in ours:
        yield from restricted(container.get("securityContext", {}), container["name"])
        paths = [mount["mountPath"] for mount in container["volumeMounts"]]
        if len(paths) != len(set(paths)):
            yield f"two mounts at one place: {paths}"
        if any("subPath" in mount for mount in container["volumeMounts"]):
            yield "a file mounted by subPath does not change with its source"
        if not alone and spec.get("automountServiceAccountToken") is not False and TOKEN not in paths:
            yield "the app's service account token is mounted in fencepost's container"
        if "limits" not in container["resources"] or "cpu" in container["resources"]["limits"]:
            yield "memory is to be limited, and the CPU is not: a throttled proxy renews its lease late"


def restricted(context, whose, pod=False):
    """Pod Security's level `restricted`; what a pod may say is said by each container as well."""
    wanted = {"runAsNonRoot": True, "runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"}}
    if not pod:
        wanted |= {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}
    for name, value in wanted.items():
        if context.get(name) != value:
            yield f"securityContext.{name} of {whose} is {context.get(name)}, not {value}"


def of_workload(manifest, config):
    spec, pod = manifest["spec"], pod_of(manifest)
    if not matches(spec["selector"]["matchLabels"], pod["metadata"]["labels"]):
        yield "its selector does not select its own pods"
    found = fenceposts(pod)
    if len(found) != 1:
        yield f"it has {len(found)} containers called fencepost"
        return
    fencepost = found[0]
    others = [c for c in pod["spec"]["containers"] if c is not fencepost]
    yield from of_container(fencepost, others, pod, config)
    if "sqlite:" in config["store"].get("url", ""):
        if spec.get("replicas") != 1:
            yield f"SQLite, and {spec.get('replicas')} replicas"
        if manifest["kind"] == "Deployment" and spec.get("strategy", {}).get("type") != "Recreate":
            yield "SQLite, and a Deployment that rolls"
        data = [m["name"] for m in fencepost["volumeMounts"] if m["mountPath"] == "/var/lib/fencepost"]
        claims = {claim["metadata"]["name"] for claim in spec.get("volumeClaimTemplates", [])}
        claims |= {v["name"] for v in pod["spec"].get("volumes", []) if "persistentVolumeClaim" in v}
        if not set(data) & claims:
            yield "SQLite, and no claim at /var/lib/fencepost"
        if "fsGroup" not in pod["spec"].get("securityContext", {}):
            yield "SQLite, and no fsGroup: the volume is root's"
    elif manifest["kind"] == "Deployment" and not others:
        if spec["strategy"] != {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}}:
            yield f"an update with a gap: {spec['strategy']}"
        spread = pod["spec"]["topologySpreadConstraints"]
        if not all(matches(s["labelSelector"]["matchLabels"], pod["metadata"]["labels"]) for s in spread) or not spread:
            yield "its pods are not spread"


def of_container(fencepost, others, pod, config):
    """The container itself, and the order in which it and the app end."""
    ports = {port["name"]: port["containerPort"] for port in fencepost["ports"]}
    env = {entry["name"]: entry.get("value") for entry in fencepost["env"]}
    for variable, name in (("FENCEPOST_LISTEN", "fencepost"), ("FENCEPOST_ADMIN_LISTEN", "fencepost-admin")):
        if env.get(variable) not in (f"0.0.0.0:{ports[name]}", f"[::]:{ports[name]}"):
            yield f"{variable} is {env.get(variable)}, port {name} is {ports[name]}"
    if fencepost["args"][0] != "serve" or env["FENCEPOST_CONFIG"] != "/etc/fencepost/fencepost.yaml":
        yield "it does not serve the ConfigMap's configuration"
    for probe, path in (("startupProbe", "/livez"), ("livenessProbe", "/livez"), ("readinessProbe", "/readyz")):
        if fencepost[probe].get("httpGet") != {"path": path, "port": "fencepost-admin"}:
            yield f"{probe} is {fencepost[probe]}"
    sidecar = bool(others)
    hooks = fencepost.get("lifecycle", {})
    if fencepost in pod["spec"].get("initContainers", []):
        if fencepost.get("restartPolicy") != "Always":
            yield "an init container that never ends"
        if hooks.get("preStop") != {"exec": {"command": ["/fencepost", "drain"]}}:
            yield f"a native sidecar that is not told to drain before the app ends: {hooks}"
    elif hooks or "restartPolicy" in fencepost:
        yield f"its SIGTERM is enough, and it has {hooks}"
    app = [c for c in others if c.get("lifecycle", {}).get("preStop", {}).get("httpGet")
           == {"path": "/drained", "port": ports["fencepost-admin"]}]
    if sidecar and len(app) != 1:
        yield f"{len(app)} containers wait for fencepost before they end"
    shutdown = config.get("shutdown", {})
    least = seconds(shutdown.get("delay", "0s")) + seconds(shutdown.get("deadline", "25s")) + (30 if sidecar else 0)
    if pod["spec"]["terminationGracePeriodSeconds"] <= least:
        yield f"a grace period of {pod['spec']['terminationGracePeriodSeconds']} s, and up to {least} s to end"
    if not pod["metadata"]["annotations"].get("checksum/fencepost"):
        yield "its pods do not roll where a reload is not enough"


def of_job(manifest, manifests):
    spec = pod_of(manifest)["spec"]
    weight = lambda m: int(m["metadata"]["annotations"]["helm.sh/hook-weight"])
    if hook(manifest) != "pre-install,pre-upgrade":
        yield "it does not run before the release"
    needed = {("ServiceAccount", spec["serviceAccountName"])}
    needed |= {("ConfigMap", v["configMap"]["name"]) for v in spec["volumes"] if "configMap" in v}
    for name in needed:
        there = [m for m in manifests if (m["kind"], m["metadata"]["name"]) == name]
        if not there or hook(there[0]) != hook(manifest) or weight(there[0]) >= weight(manifest):
            yield f"{name} is not there before it runs"
    config = next(yaml.safe_load(m["data"]["fencepost.yaml"]) for m in manifests
                  if m["kind"] == "ConfigMap" and "fencepost.yaml" in m["data"])
    if config["store"]["migrate"]:
        yield "the proxy would migrate as well"


def of_service(manifest, pods):
    for workload in pods:
        pod = pod_of(workload)
        if not matches(manifest["spec"]["selector"], pod["metadata"]["labels"]):
            yield "it selects no pod"
            continue
        for port in manifest["spec"]["ports"]:
            # Before 1.33 the ports of an init container may not be found by their names.
            if not isinstance(port["targetPort"], int):
                yield f"targetPort {port['targetPort']} is a name"
            # Then it counts for nothing: clients dial the Service's port on the pod's address.
            if manifest["spec"].get("clusterIP") == "None" and port["port"] != port["targetPort"]:
                yield f"a headless Service whose port {port['port']} is not the pod's"
            found = port_named(pod, port["targetPort"])
            wanted = "fencepost-admin" if port["name"] == "fencepost-admin" else "fencepost"
            if [p for _, p in found] != [p for _, p in port_named(pod, wanted)] or found[0][0]["name"] != "fencepost":
                yield f"targetPort {port['targetPort']} is not fencepost's"


def of_policy(manifest, manifests, pods, config):
    spec = manifest["spec"]
    own = [p for p in pods if matches(spec["podSelector"].get("matchLabels"), pod_of(p)["metadata"]["labels"])]
    # A gateway's pod holds nothing but fencepost. A sidecar's egress is the app's.
    gateway = any(len(containers(pod_of(p))) == len(fenceposts(pod_of(p))) for p in own)
    wanted = ["Ingress", "Egress"] if gateway else ["Ingress"]
    if spec["policyTypes"] != wanted:
        yield f"it is about {spec['policyTypes']}, not {wanted}"
    if gateway:
        others = [m for m in manifests if m["kind"] == "NetworkPolicy" and m is not manifest]
        yield from of_egress(manifest, others, config)
    if own:
        upstream = re.search(r":([0-9]+)$", config["upstream"]["url"])
        for rule in spec["ingress"]:
            if not rule.get("ports") or upstream and int(upstream[1]) in [p["port"] for p in rule["ports"]]:
                yield f"the app's port is open: {rule}"
        data = port_named(pod_of(own[0]), "fencepost")[0][1]
        if not any(p["port"] == data for rule in spec["ingress"] for p in rule["ports"]):
            yield "the data port is closed"
        return
    first = spec["ingress"][0]["from"][0]
    if not any(matches(first["podSelector"]["matchLabels"], pod_of(p)["metadata"]["labels"]) for p in pods):
        yield "it does not let fencepost's pods in"
    elsewhere = manifest["metadata"]["namespace"] not in {p["metadata"]["namespace"] for p in pods}
    if elsewhere and "namespaceSelector" not in first:
        yield "fencepost's pods are in another namespace, and it looks for them in its own"
    named = re.search(r"\.([a-z0-9-]+)\.svc(?:[.:/]|$)", config["upstream"]["url"])
    if named and named[1] != manifest["metadata"]["namespace"]:
        yield f"the upstream's Service is in namespace {named[1]}, and so are its pods"


def of_egress(manifest, others, config):
    """A gateway's way out: to the pods that the other policy closes, to DNS, to Postgres, and not to everything."""
    rules, here = manifest["spec"].get("egress", []), manifest["metadata"]["namespace"]
    if len(others) != 1:
        yield f"{len(others)} policies close the upstream"
    for other in others:
        peer, namespace = {"podSelector": other["spec"]["podSelector"]}, other["metadata"]["namespace"]
        if namespace != here:
            peer["namespaceSelector"] = {"matchLabels": {"kubernetes.io/metadata.name": namespace}}
        if {"to": [peer]} not in rules:
            yield f"no way out to the upstream's pods on all their ports: {peer}"
    if {"ports": [{"port": 53, "protocol": "UDP"}, {"port": 53, "protocol": "TCP"}]} not in rules:
        yield "no way out to DNS, wherever it is"
    # Its port is in the URL, which is in a Secret: any rule of one TCP port may be the one.
    ports = [rule["ports"] for rule in rules if len(rule.get("ports") or []) == 1]
    databases = [port["port"] for [port] in ports if port.get("protocol", "TCP") == "TCP" and port["port"] != 53]
    if "url_file" in config["store"] and not databases:
        yield "no way out to Postgres"
    elif "url_file" not in config["store"] and 5432 in databases:
        yield "a way out to Postgres, and the marks are in a file"
    if any(not rule.get("to") and not rule.get("ports") for rule in rules):
        yield "every way out is open"
