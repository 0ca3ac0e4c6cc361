"""Helm's own engine on charts/fencepost. Needs tests/tools/requirements.txt; tests/run.sh installs it into
target/tools/python."""

import pathlib

import helm_python
import yaml

TOP = pathlib.Path(__file__).resolve().parents[2]
CHART = TOP / "charts" / "fencepost"


def merged(into, more):
    """Helm's rule for values files: maps are merged, all else is replaced, and a null takes the key away later on."""
    for key, value in more.items():
        if isinstance(value, dict) and isinstance(into.get(key), dict):
            merged(into[key], value)
        else:
            into[key] = value
    return into


def in_a_registry(values):
    """The chart names no registry of its own: these values with the one of the tests, where they name none."""
    return merged({"global": {"imageRegistry": "registry.example"}}, values)


def render(chart, values, name="fencepost", namespace="default"):
    """The chart's manifests, in the order of their files, each with the file it came from."""
    with helm_python.Chart.load(str(chart)) as loaded:
        files = loaded.render(in_a_registry(values), name=name, namespace=namespace)
    manifests = []
    for file in sorted(files):
        if file.endswith((".yaml", ".yml")):
            manifests += [(file, document) for document in yaml.safe_load_all(files[file]) if document]
    return manifests
