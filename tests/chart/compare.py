"""What kubectl builds of config/kubernetes, set against what the chart renders of equivalent values."""

import copy
import difflib
import functools
import json
import re

import yaml

import check
from tool import CHART, render

# What the components call their objects.
NAME = "orders-fencepost"
HASHED = re.compile(rf"{NAME}-[a-z0-9]{{10}}\b")


def of_kind(kind, manifests):
    return next(one for one in manifests if one["kind"] == kind)


def unhashed(manifests):
    """The manifests as the chart has them: the ConfigMap under its own name, and in place of the hash in its name the
    annotation that lets the pods roll."""
    manifests = copy.deepcopy(manifests)
    config, pod = of_kind("ConfigMap", manifests), of_kind("Deployment", manifests)["spec"]["template"]
    hashed, annotations = config["metadata"]["name"], pod["metadata"].setdefault("annotations", {})
    for volume in pod["spec"]["volumes"]:
        if HASHED.fullmatch(hashed) and volume.get("configMap", {}).get("name") == hashed:
            annotations["checksum/fencepost"] = hashed
            config["metadata"]["name"] = volume["configMap"]["name"] = NAME
    return manifests


def values_of(example, form, store, policy):
    """The values with which the chart has the same to render."""
    values = yaml.safe_load(check.CI["sidecar-deployment"].read_text())
    values["fullnameOverride"] = NAME
    values["sidecar"] = {"form": form}
    values["networkPolicy"] = {"enabled": policy}
    values["workload"]["spec"] = yaml.safe_load((example / "deployment.yaml").read_text())["spec"]
    if store == "sqlite":
        values["store"] = {"type": "sqlite", "namespace": values["store"]["namespace"]}
        values["config"]["store"] = {"create": "if-missing"}
        values["workload"]["spec"]["replicas"] = 1
    return values


def parts(manifests):
    """What has to be equal, by name: all but names, labels and annotations of the objects themselves."""
    workload, config = of_kind("Deployment", manifests), of_kind("ConfigMap", manifests)
    found = {"Deployment": copy.deepcopy(workload["spec"]),
             "fencepost.yaml": yaml.safe_load(config["data"]["fencepost.yaml"])}
    found["the ConfigMap"] = config["metadata"]["name"], list(config["data"])
    annotations = found["Deployment"]["template"]["metadata"].get("annotations", {})
    found["an annotation by which the pods roll"] = bool(annotations.pop("checksum/fencepost", None))
    if not annotations:
        found["Deployment"]["template"]["metadata"].pop("annotations", None)
    pod = found["Deployment"]["template"]["spec"]
    # Their order has no meaning.
    pod["volumes"] = {volume["name"]: volume for volume in pod["volumes"]}
    for one in manifests:
        if one["kind"] in ("Service", "PersistentVolumeClaim", "NetworkPolicy"):
            found[one["kind"]] = one["metadata"]["name"], one["spec"]
    # The API's default.
    name, service = found["Service"]
    found["Service"] = name, {"type": "ClusterIP", **service}
    return found


def differences(manifests, example, variant):
    """From what the chart renders."""
    store, _, form = variant.partition("-")
    policy = any(one["kind"] == "NetworkPolicy" for one in manifests)
    values = values_of(example, form or "native", store, policy)
    here, chart = (yaml.safe_dump(parts(all_of)).splitlines() for all_of in (unhashed(manifests), rendered(json.dumps(values))))
    yield from difflib.unified_diff(here, chart, "here", "in the chart", lineterm="")


@functools.cache
def rendered(values):
    return [one for _, one in render(CHART, json.loads(values))]
