"""The YAML in the documents, checked as what it is meant to be.

    guide.py --fencepost BINARY     every marked block of README.md, docs/ and the READMEs of chart and config/

An HTML comment before a ```yaml block says what it is:

    <!-- values: NAME -->                 values for the chart: rendered, each manifest validated, each configuration checked
    <!-- values: NAME over OTHER -->      the same, laid over the block called OTHER
    <!-- manifest: NAME -->               objects of Kubernetes
    <!-- config: NAME -->                 a fencepost.yaml

A block that looks like one of these and has no mark is an error, so that none escapes.
"""

import pathlib
import re
import subprocess
import sys
import types

import helm_python
import yaml

import check
import sense
import tool

MARK = re.compile(r"<!-- (values|manifest|config): ([a-z0-9-]+)(?: over ([a-z0-9-]+))? -->")
BLOCK = re.compile(r"(?:^ *(<!-- [^\n]* -->)\n\s*)?^( *)```ya?ml[^\n]*\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)


def blocks():
    """Every YAML block of the documents, with what its mark says."""
    files = [tool.TOP / "README.md", *sorted((tool.TOP / "docs").glob("*.md")), tool.CHART / "README.md",
             *sorted((tool.TOP / "config").glob("*/README.md"))]
    for file in files:
        text = file.read_text()
        for line in re.findall(r"^ *(<!--\s*(?:values|manifest|config)\b.*)", text, re.MULTILINE):
            if not MARK.fullmatch(line):
                sys.exit(f"{file.name}: {line} is no mark that is known here")
        for found in BLOCK.finditer(text):
            mark = MARK.fullmatch(found[1] or "")
            kind, name, over = mark.groups() if mark else (None, None, None)
            where = f"{file.relative_to(tool.TOP)}:{text.count(chr(10), 0, found.start(3))}"
            body = re.sub(f"^{found[2]}", "", found[3], flags=re.MULTILINE)
            yield types.SimpleNamespace(where=where, text=body, kind=kind, name=name, over=over)


def looks_like(text):
    """What an unmarked block ought to be marked as; None for anything else."""
    try:
        documents = [one for one in yaml.safe_load_all(text) if isinstance(one, dict)]
    except yaml.YAMLError:
        return None
    for document in documents:
        if "apiVersion" in document and "kind" in document:
            return "manifest"
        if isinstance(document.get("upstream"), dict) or "routes" in document:
            return "config"
        if isinstance(document.get("config"), dict):
            return "values"
    return None


def config_problems(fencepost, config, directory):
    """`fencepost check` on a configuration."""
    file = pathlib.Path(directory) / "fencepost.yaml"
    file.write_text(config)
    done = subprocess.run(
        [fencepost, "check", file], capture_output=True, text=True, env={}, check=False, timeout=60
    )
    if done.returncode != 0:
        yield done.stdout + done.stderr


def values_of(block, known):
    """The values of a block, over those of the block that it names."""
    base = {}
    if block.over:
        if block.over not in known:
            raise ValueError(f"there is no block of values called {block.over}")
        base = values_of(known[block.over], known)
    return tool.merged(base, yaml.safe_load(block.text) or {})


def taken_over(values, manifests):
    """Of a workload that was there before: what would go with the release, though it did not come with it."""
    if not values.get("workload"):
        return
    names = values["workload"]["name"], values.get("service", {}).get("name")
    for one in [one for one in manifests if one["kind"] in (*sense.PODS, "Service") and one["metadata"]["name"] in names]:
        if (one["metadata"].get("annotations") or {}).get("helm.sh/resource-policy") != "keep":
            yield f"{one['kind']} {one['metadata']['name']} was there before, and `helm uninstall` would delete it"


def problems(block, known, fencepost, directory):
    if block.kind is None:
        yield f"no mark; it looks like <!-- {looks_like(block.text)}: NAME -->"
    elif block.kind == "config":
        yield from config_problems(fencepost, block.text, directory)
    elif block.kind == "manifest":
        for manifest in filter(None, yaml.safe_load_all(block.text)):
            yield from check.kube_problems(manifest, check.NEW)
    else:
        values = values_of(block, known)
        manifests = [one for _, one in tool.render(tool.CHART, values)]
        yield from sense.problems(manifests)
        yield from taken_over(values, manifests)
        for manifest in manifests:
            yield from check.kube_problems(manifest, check.NEW)
            if manifest["kind"] == "ConfigMap" and "fencepost.yaml" in (manifest.get("data") or {}):
                yield from config_problems(fencepost, manifest["data"]["fencepost.yaml"], directory)


def documents(cases, work, fencepost, **_):
    found = list(blocks())
    known = {block.name: block for block in found if block.kind == "values"}
    names = set()
    for block in found:
        if block.kind is None and looks_like(block.text) is None:
            continue
        try:
            said = list(problems(block, known, fencepost, work))
        except (ValueError, KeyError, yaml.YAMLError, helm_python.HelmError) as error:
            said = [f"{type(error).__name__}: {error}"]
        if block.kind and (block.kind, block.name) in names:
            said.append("there is one of this name already")
        names.add((block.kind, block.name))
        cases.case(f"{block.where} {block.kind or ''} {block.name or ''}", said)


if __name__ == "__main__":
    check.run({"documents": documents}, __doc__)
