"""Helm's own engine on charts/fencepost, for the tests and for a look by hand.

    tool.py render --values FILE... [--set KEY=VALUE...] [--namespace NS] [--name RELEASE]
        the manifests as a JSON array; 1, and what Helm says, where it refuses

Needs tests/tools/requirements.txt; tests/run.sh installs it into target/tools/python.
"""

import argparse
import json
import pathlib
import sys

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


def values_of(files, sets):
    values = {}
    for file in files:
        merged(values, yaml.safe_load(pathlib.Path(file).read_text()) or {})
    for text in sets:
        merged(values, helm_python.parse_set_string(text))
    return values


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


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("render")
    one.add_argument("--chart", default=CHART)
    one.add_argument("--values", nargs="*", default=[])
    one.add_argument("--set", nargs="*", default=[])
    one.add_argument("--namespace", default="default")
    one.add_argument("--name", default="fencepost")
    args = parser.parse_args()
    try:
        manifests = render(args.chart, values_of(args.values, args.set), args.name, args.namespace)
    except helm_python.HelmError as error:
        sys.exit(str(error))
    json.dump([document for _, document in manifests], sys.stdout, indent=1)


if __name__ == "__main__":
    main()
