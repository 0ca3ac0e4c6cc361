"""Grafana's part of the tutorial. Grafana itself is not at hand: its files are checked against each other."""

import json

import yaml
from container import Wrong

PROVISIONING = "/etc/grafana/provisioning"


def check(service, folder):
    mounts = {}
    for volume in service["volumes"]:
        outside, inside, _ = volume.split(":")
        mounts[inside] = folder / outside
    read = {inside: yaml.safe_load(path.read_text()) for inside, path in mounts.items() if inside.startswith(PROVISIONING)}
    sources = [one for at, file in read.items() if at.startswith(f"{PROVISIONING}/datasources/") for one in file["datasources"]]
    providers = [one for at, file in read.items() if at.startswith(f"{PROVISIONING}/dashboards/") for one in file["providers"]]
    if any(file["apiVersion"] != 1 for file in read.values()):
        raise Wrong("Grafana's provisioning has version 1")
    # The dashboard's data source is a variable: any Prometheus, and the default one first.
    if [(one["type"], one["url"], one["isDefault"]) for one in sources] != [("prometheus", "http://prometheus:9090", True)]:
        raise Wrong(f"data sources: {sources}")
    paths = [one["options"]["path"] for one in providers if one["type"] == "file"]
    boards = [path for inside, path in mounts.items() if inside.endswith(".json") and inside.rpartition("/")[0] in paths]
    if len(boards) != 1:
        raise Wrong(f"{paths} has {boards}")
    board = json.loads(boards[0].read_text())
    if board["uid"] != "fencepost":
        raise Wrong("the README's link names another uid")
    variables = {one["name"]: one for one in board["templating"]["list"]}
    wanted = [one["datasource"]["uid"] for one in board["panels"] if one["type"] != "row"]
    if variables["datasource"]["query"] != sources[0]["type"] or set(wanted) - {"${datasource}", sources[0]["uid"]}:
        raise Wrong(f"the dashboard's data source is not the provisioned one: {set(wanted)}")
