"""Checks charts/fencepost without a cluster: Helm's engine renders and lints it, Kubernetes' schemas judge what comes out.

    check.py [GROUP...] --fencepost PATH [--write]

    renders   every ci/*-values.yaml and the chart of examples/: lint, and each manifest against the schemas, strictly
    sense     what no schema says: ports, selectors, volumes, security, the order of termination (sense.py)
    restarts  the pods roll for what a reload cannot change, and for nothing else
    configs   each rendered fencepost.yaml passes `fencepost check`
    refused   each combination of refused.yaml is refused, for its reason; what is near to one is not
    examples  examples/*.yaml are what the chart renders; --write renews them
    values    README.md's table is values.yaml, and the schema has each of them
    files     alerts and dashboard are the files of config/, to the letter

One line per case; 1 if one has failed.
"""

import argparse
import copy
import functools
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile

import helm_python
import kubernetes_validate
import yaml

import crds
import sense
from tool import CHART, TOP, in_a_registry, merged, render

CI = {path.name.removesuffix("-values.yaml"): path for path in sorted((CHART / "ci").glob("*-values.yaml"))}
# Three minor versions; what has no native sidecar also on the oldest that Chart.yaml lets in, and
# on the last one without.
NEW = ["1.30", "1.33", "1.36"]
OLD = ["1.27", "1.28"]
RELEASE = {"name": "fencepost", "namespace": "default"}
# The examples: what each is rendered from.
EXAMPLES = ["gateway-sqlite", "sidecar-deployment"]
PARENTS = ["orders-chart", "ledger-chart"]


class Cases:
    """Counts, and says each."""

    def __init__(self):
        self.failed = 0

    def case(self, name, problems):
        problems = [str(problem).strip() for problem in problems]
        self.failed += bool(problems)
        print(f"{'FAILED' if problems else 'ok':6} {name}")
        for problem in problems:
            print("       " + problem.replace("\n", "\n       "))


@functools.cache
def packed(work):
    """A copy of the chart in which the links are files, as in its package. (About a link Helm says so, every time.)"""
    return pathlib.Path(shutil.copytree(CHART, work / "fencepost"))


@functools.cache
def parent(name, work):
    """A chart of examples/ with its dependency fetched, the chart beside it."""
    chart = packed(work) / "examples" / name
    helm_python.dependency_update(str(chart))
    return chart


@functools.cache
def rendered(name, work):
    """(file, manifest) of a ci file, or of an example that takes the chart in."""
    if name in PARENTS:
        return render(parent(name, work), {}, name=name.removesuffix("-chart"), namespace="default")
    return render(packed(work), yaml.safe_load(CI[name].read_text()), **RELEASE)


def kube_problems(manifest, versions):
    if manifest["apiVersion"] in crds.VERSIONS:
        yield from crds.problems(manifest)
        return
    for version in versions:
        try:
            kubernetes_validate.validate(manifest, version, strict=True)
        except kubernetes_validate.ValidationError as error:
            where = ".".join(map(str, error.path))
            yield f"{manifest['kind']}/{manifest['metadata']['name']} on {version}: {where}: {error.message}"


def lint_problems(chart, values, version):
    """Helm's own warnings and errors; that there is no icon is no concern of a sidecar."""
    report = helm_python.lint(str(chart), in_a_registry(values), kube_version=f"v{version}.0")
    return [f"{m['path']}: {m['error']}" for m in report["messages"] if m["severity"] >= 2]


def renders(cases, work, **_):
    for name in [*CI, *PARENTS]:
        manifests = [manifest for _, manifest in rendered(name, work)]
        chart, values = (parent(name, work), {}) if name in PARENTS else (packed(work), yaml.safe_load(CI[name].read_text()))
        native = any(c.get("restartPolicy") for m in manifests if m["kind"] in sense.PODS for c in sense.fenceposts(sense.pod_of(m)))
        native |= name == "sidecar-template"
        versions = NEW if native else OLD + NEW
        problems = [problem for version in versions for problem in lint_problems(chart, values, version)]
        for manifest in manifests:
            problems += kube_problems(manifest, versions)
        cases.case(f"renders: {name}: {len(manifests)} manifests on {', '.join(versions)}", problems)


def senses(cases, work, **_):
    for name in [*CI, *PARENTS]:
        manifests = [manifest for _, manifest in rendered(name, work)]
        cases.case(f"sense: {name}", sense.problems(manifests))
    notes = {
        "gateway-observe": ["!!! /{*path} is in mode observe: NOTHING IS REFUSED",
                            "!!! clients that connect to http://orders.shop.svc:3000 directly: networkPolicy.enabled is false"],
        "gateway-postgres": ["!!! /health is in mode bypass", "in spite of the NetworkPolicies",
                             "The upstream's pods in namespace shop accept connections only from fencepost",
                             "-X PUT 'http://127.0.0.1:7080/orders/7' -H 'X-Fencing-Token: 1'", "The grace period is 40 s"],
        "gateway-everything": ["port-forward service/orders-fence 7080:3000", "in spite of the NetworkPolicies"],
        "gateway-keys": ["The upstream's pods in namespace default", "-X POST 'http://127.0.0.1:7080/print/7/pages?tray=7' -H 'X-Fencing-Token: try#1' -H 'x-tenant: 7' "
                         """--json '{"job":"7"}'"""],
        "sidecar-deployment": ["port-forward service/orders 7080:80", "!!! clients that connect to port 3000 of the pods directly"],
        "sidecar-template": ["another chart must include fencepost.sidecar"],
    }
    for name, wanted in notes.items():
        with helm_python.Chart.load(str(packed(work))) as chart:
            text = chart.render(in_a_registry(yaml.safe_load(CI[name].read_text())), **RELEASE)["fencepost/templates/NOTES.txt"]
        cases.case(f"notes: {name}", [f"{part!r} is not in it:\n{text}" for part in wanted if part not in text])


# What a reload takes over, and what only a restart does (`Settings::reload_from` in src/config/settings.rs): the pods roll for
# the second.
RELOADED = [{"barrier": {"wait": "3s"}}, {"log": {"level": "debug"}}, {"disclose": False},
            {"shutdown": {"deadline": "20s"}}, {"upstream": {"timeout": "9s"}}, {"stale_status": 409}, {"store": {"create": "never"}},
            {"trusted_proxies": ["10.0.0.0/8"]}]
RESTARTED = [{"barrier": {"settle": "40s"}}, {"upstream": {"undelivered": "9s"}}, {"store": {"lease": "9s"}}, {"store": {"cached_marks": 9}},
             {"limits": {"in_flight": 64}}, {"barrier": {"queue": 9}},
             {"tls": {"cert_file": "/a", "key_file": "/b"}},
             {"routes": [{"path": "/orders/{id}/{*rest}", "resource": "other:{id}"}, {"path": "/health", "mode": "bypass"}]}]


def restarts(cases, work, **_):
    def checksum(config, store=None, **more):
        more = {"config": config, "store": store or {}, **more}
        values = merged(yaml.safe_load(CI["gateway-postgres"].read_text()), copy.deepcopy(more))
        pod = next(m for _, m in render(packed(work), values, **RELEASE) if m["kind"] == "Deployment")["spec"]["template"]
        return pod["metadata"]["annotations"]["checksum/fencepost"]

    before = checksum({})
    for config in RELOADED:
        cases.case(f"restarts: reloaded: {config}", ["the pods would roll"] if checksum(config) != before else [])
    for config in RESTARTED:
        cases.case(f"restarts: restarted: {config}", ["the pods would not roll"] if checksum(config) == before else [])
    rolls = checksum({}, {"namespace": "other"}) != before
    observed = {"path": "/orders/{id}/{*rest}", "resource": "order:{id}", "mode": "observe"}
    observes = checksum({"routes": [observed, {"path": "/health", "mode": "bypass"}]}, acknowledge={"observe": True})
    cases.case("restarts: reloaded: back to observing", ["the pods would roll"] if observes != before else [])
    cases.case("restarts: restarted: another namespace", [] if rolls else ["the pods would not roll"])


def configs(cases, work, fencepost, **_):
    for name in [*CI, *PARENTS]:
        for _, manifest in rendered(name, work):
            text = manifest.get("data", {}).get("fencepost.yaml") if manifest["kind"] == "ConfigMap" else None
            if text is None:
                continue
            file = work / "fencepost.yaml"
            file.write_text(text)
            # The chart's variables are the listeners; nothing of this machine's environment is
            # read.
            done = subprocess.run([fencepost, "check", file], capture_output=True, text=True, env={}, check=False)
            said = done.stdout + done.stderr
            # Secrets are mounted in the pod, and not on this machine.
            mounted = re.compile(r"warning: \S+: [a-z_.]+: /run/secrets/fencepost/\S+ cannot be read(?: here)?: ")
            warnings = [line for line in said.splitlines() if line.startswith("warning:") and not mounted.match(line)]
            meant = all("observe refuses nothing" in line for line in warnings) if "observe" in name else not warnings
            bad = done.returncode != 0 or not meant or "no errors" not in said
            cases.case(f"config: {name}: {manifest['metadata']['name']}", [said] if bad else [])
        for _, manifest in rendered(name, work):
            if manifest["kind"] != "CronJob":
                continue
            # Nobody is there to be drilled; that the drill understands each argument is what counts.
            args = manifest["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"][0]["args"]
            done = subprocess.run([fencepost, *args], capture_output=True, text=True, env={}, check=False)
            checks = re.findall(r"^  (?:ok|FAILED) +(\S+)", done.stdout, re.MULTILINE)
            bad = done.returncode != 1 or checks != ["current-token", "stale-token", "direct"]
            cases.case(f"drill: {name}: {manifest['metadata']['name']}", [done.stdout + done.stderr] if bad else [])


def refusal(chart, values, version):
    """What Helm says to these values; None if nothing. Only its linter can be told the cluster's version, and there
    `fail` is a line in the log."""
    if version:
        with tempfile.TemporaryFile() as log:
            stderr = os.dup(2)
            os.dup2(log.fileno(), 2)
            try:
                lint_problems(chart, values, version)
            finally:
                os.dup2(stderr, 2)
                os.close(stderr)
            log.seek(0)
            return log.read().decode() or None
    try:
        render(chart, values, **RELEASE)
    except helm_python.HelmError as error:
        return str(error)
    return None


def refused(cases, work, **_):
    for base, rows in yaml.safe_load((TOP / "tests/chart/refused.yaml").read_text()).items():
        for row in rows:
            [(reason, changes)] = row.items()
            kube = changes.pop("kube", None)
            values = merged(yaml.safe_load(CI[base].read_text()), copy.deepcopy(changes))
            said = refusal(packed(work), values, kube) or "rendered"
            right = said == reason if "rendered" in (said, reason) else reason in said
            cases.case(f"refused for {reason}: {changes}", [] if right else [said])


def examples(cases, work, write, **_):
    for name in EXAMPLES:
        file = CHART / "examples" / f"{name}.yaml"
        head = f"# What Helm renders from ci/{name}-values.yaml; `tests/chart/check.py examples --write` renews it.\n"
        text = head + "".join("---\n" + dump(manifest) for _, manifest in rendered(name, work))
        if write:
            file.write_text(text)
        same = file.exists() and file.read_text() == text
        cases.case(f"example: {name}", [] if same else ["it is not what the chart renders: check.py examples --write"])


class Block(yaml.SafeDumper):
    """Texts of several lines as blocks, as people write them."""


Block.add_representer(str, lambda dumper, text: dumper.represent_scalar(
    "tag:yaml.org,2002:str", text, style="|" if "\n" in text else None))


def dump(manifest):
    return yaml.dump(manifest, Dumper=Block, sort_keys=False, width=120)


# Values that are one thing to their reader: one row for all of it.
WHOLE = {"config", "resources", "securityContext", "podSecurityContext", "startupProbe", "livenessProbe",
         "readinessProbe", "topologySpreadConstraints", "metrics.dashboard.labels"}


def leaves(values, path=""):
    for key, value in values.items():
        here = f"{path}{key}"
        if isinstance(value, dict) and value and here not in WHOLE:
            yield from leaves(value, here + ".")
        else:
            yield here, None if here in WHOLE else json.dumps(value)


def values_and_schema(cases, **_):
    wanted = dict(leaves(yaml.safe_load((CHART / "values.yaml").read_text())))
    table = (CHART / "README.md").read_text().partition("\n## Values\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `([^`]+)` \| (?:`([^`]*)`|([^|]*)) \|", table, re.MULTILINE)
    said = {key: literal for key, literal, _ in rows}
    problems = [f"{key} is not in README.md's table" for key in wanted if key not in said]
    problems += [f"README.md's table has {key}, values.yaml has not" for key in said if key not in wanted]
    problems += [f"{key}: README.md says {said[key]}, values.yaml {default}"
                 for key, default in wanted.items() if key in said and default is not None and said[key] != default]
    cases.case("values: README.md's table", problems)
    known = json.loads((CHART / "values.schema.json").read_text())["properties"]
    top = yaml.safe_load((CHART / "values.yaml").read_text())
    cases.case("values: every one is in the schema", [key for key in top if key not in known])


def files(cases, work, **_):
    with tarfile.open(helm_python.package(str(CHART), destination=str(work))) as archive:
        packed_files = {name.removeprefix("fencepost/"): archive.extractfile(name).read() for name in archive.getnames()}
    strays = [name for name in packed_files if name.startswith(("ci/", "examples/"))]
    cases.case("files: the package", [f"{name} is in it" for name in strays] + [
        f"{name} is not in it, or another file" for name in ("files/alerts.yaml", "files/fencepost.json", "README.md")
        if packed_files.get(name) != (CHART / name).read_bytes()])
    for name, source in (("alerts.yaml", "config/prometheus/alerts.yaml"), ("fencepost.json", "config/grafana/fencepost.json")):
        link, target = CHART / "files" / name, TOP / source
        problems = [] if link.is_symlink() and link.resolve() == target and target.exists() else [f"it is not {source}"]
        cases.case(f"files: {name} is a link", problems)
    for name in ("gateway-everything", "sidecar-watched"):
        # From the tree itself: Helm follows the links.
        manifests = render(CHART, yaml.safe_load(CI[name].read_text()), **RELEASE)
        by_kind = {(m["kind"], m["metadata"]["name"]): m for _, m in manifests}
        rule = next(m for (kind, _), m in by_kind.items() if kind == "PrometheusRule")
        alerts = yaml.safe_load((TOP / "config/prometheus/alerts.yaml").read_text())
        cases.case(f"files: {name}: the rules", [] if rule["spec"] == alerts else ["they are not config/prometheus/alerts.yaml"])
        board = next(m for (_, called), m in by_kind.items() if called.endswith("-dashboard"))
        same = board["data"]["fencepost.json"] == (TOP / "config/grafana/fencepost.json").read_text()
        cases.case(f"files: {name}: the dashboard", [] if same else ["it is not config/grafana/fencepost.json"])
    changed_alerts(cases)


def changed_alerts(cases):
    """Each threshold that values may change stands in its alert, and nothing else changes."""
    table = (CHART / "templates" / "_alerts.tpl").read_text().split('define "fencepost.thresholds"')[1].split("{{- end")[0]
    table = yaml.safe_load(table.split("-}}", 1)[1])
    wanted = {}
    for number, row in enumerate(table):
        wanted.setdefault(row["alert"], {})[row["name"]] = number + 1000.25
    values = yaml.safe_load(CI["sidecar-watched"].read_text())

    def rules(**prometheus_rule):
        changed = copy.deepcopy(values)
        changed["metrics"]["runbookBaseUrl"] = "https://git.example.com/f/"
        changed["metrics"]["prometheusRule"].update(prometheus_rule)
        manifests = render(CHART, changed, **RELEASE)
        spec = next(m["spec"] for _, m in manifests if m["kind"] == "PrometheusRule")
        board = next(m["data"]["fencepost.json"] for _, m in manifests if "fencepost.json" in m.get("data", {}))
        return {rule.get("alert", rule.get("record")): rule for group in spec["groups"] for rule in group["rules"]}, json.loads(board)

    plain, board = rules()
    other, _ = rules(alerts={name: {"thresholds": thresholds} for name, thresholds in wanted.items()})
    for name, rule in plain.items():
        expr = rule["expr"]
        for row in table:
            if name in (row["alert"], *row.get("also", [])):
                sign, default = row["text"].split()
                there = re.findall(rf"{sign} {re.escape(default)}(?![0-9.])", expr)
                cases.case(f"files: {name}: {row['alert']}.{row['name']}", [] if there else [f"no {row['text']} in {expr}"])
                expr = re.sub(rf"{sign} {re.escape(default)}(?![0-9.])", f"{sign} {wanted[row['alert']][row['name']]}", expr)
        problems = [] if other[name] == {**rule, "expr": expr} else [f"{other[name]['expr']} is not {expr}"]
        cases.case(f"files: {name} with other thresholds", problems)
    one = "FencepostStaleRequests"
    other, _ = rules(alertLabels={"team": "pay"}, alerts={one: {"severity": "critical", "for": "2m"}, "FencepostLimitReached": {"enabled": False}})
    problems = []
    if set(plain) - set(other) != {"FencepostLimitReached"}:
        problems.append("not only the alert that is switched off is missing")
    if other[one]["for"] != "2m" or other[one]["labels"] != {"severity": "critical", "team": "pay"}:
        problems.append(f"{one} is {other[one]}")
    if other["FencepostStoreDown"]["labels"] != {"severity": plain["FencepostStoreDown"]["labels"]["severity"], "team": "pay"}:
        problems.append("a label is missing, or changes a severity")
    url = "https://git.example.com/f/docs/runbook.md"
    if plain[one]["annotations"]["runbook_url"] != f"{url}#fencepoststalerequests":
        problems.append(plain[one]["annotations"]["runbook_url"])
    if [v["query"] for v in board["templating"]["list"] if v["name"] == "runbook"] != [url]:
        problems.append("the dashboard does not link to the runbook")
    cases.case("files: alerts with other labels and links", problems)


GROUPS = {"renders": renders, "sense": senses, "restarts": restarts, "configs": configs, "refused": refused, "examples": examples,
          "values": values_and_schema, "files": files}


def run(groups, doc, **options):
    """Runs the groups that the command line names, or all. `options`: arguments of the program's own, for argparse."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("groups", nargs="*", choices=[*groups, []], metavar="GROUP")
    parser.add_argument("--fencepost", default=TOP / "target" / "debug" / "fencepost", type=pathlib.Path)
    for name, how in options.items():
        parser.add_argument(f"--{name}", **how)
    args = vars(parser.parse_args())
    named, cases = args.pop("groups") or groups, Cases()
    with tempfile.TemporaryDirectory() as directory:
        # Helm keeps caches; here, and not in the home of whoever runs this.
        os.environ.update({f"HELM_{what}_HOME": f"{directory}/{what.lower()}" for what in ("CACHE", "CONFIG", "DATA")})
        helm_python.disable_logging()
        for name in named:
            groups[name](cases, work=pathlib.Path(directory), **args)
    sys.exit(f"{cases.failed} cases have failed" if cases.failed else 0)


if __name__ == "__main__":
    run(GROUPS, __doc__, write={"action": "store_true"})
