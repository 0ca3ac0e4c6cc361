"""Checks config/kubernetes without a cluster: kubectl builds it, and what comes out is what the chart renders.

    kubernetes.py [GROUP...] --fencepost PATH [--out DIRECTORY]

    builds    each component on the example: two kubectls build the same; schemas, strictly; sense.py; no drift
    chart     its pods, Service, policy, claim and fencepost.yaml equal the chart's render of equivalent values
    own       a Deployment with parts of its own keeps them; one of another name is refused, and not left unfenced
    configs   each fencepost.yaml passes `fencepost check`
    readme    each kustomization of README.md can be built
    plain     the example with each component in one file, for those without Kustomize; --out keeps the files

One line per case; 1 if one has failed.
"""

import functools
import json
import pathlib
import re
import shutil
import subprocess

import yaml

import check
import guide
import kubectl
import sense
from compare import HASHED, NAME, differences, of_kind, unhashed
from tool import TOP

SOURCE = TOP / "config" / "kubernetes"
# The component, and where the pods are to run. Before 1.29 there is no native sidecar.
VARIANTS = {"postgres": check.NEW, "postgres-classic": check.OLD + check.NEW,
            "sqlite": check.NEW, "sqlite-classic": check.OLD + check.NEW}
# Where one version is enough.
ONE = ["1.33"]
# Of which the API server writes back another spelling: Argo CD and Flux would see a difference.
EMPTY = (None, "", [], {})


def tree(work, name):
    """A copy of config/kubernetes, to be changed."""
    return pathlib.Path(shutil.copytree(SOURCE, work / name, ignore=shutil.ignore_patterns("README.md")))


def choose(copied, variant, *more):
    """The example with this component, and with others."""
    file = copied / "example" / "kustomization.yaml"
    kustomization = yaml.safe_load(file.read_text())
    kustomization["components"] = [f"../components/{name}" for name in (variant, "service", *more)]
    file.write_text(yaml.safe_dump(kustomization))
    return copied / "example"


def documents(text):
    return [one for one in yaml.safe_load_all(text) if one]


def drift(value, path=""):
    """What an API server would write back in another way."""
    if value in EMPTY:
        yield f"{path} is {value!r}"
    elif isinstance(value, dict):
        for key, part in value.items():
            yield from drift(part, f"{path}.{key}")
            if key in ("ports", "memory", "cpu", "storage", "sizeLimit"):
                yield from unusual(part, f"{path}.{key}")
    elif isinstance(value, list):
        for number, part in enumerate(value):
            yield from drift(part, f"{path}.{number}")


def unusual(value, path):
    if path.endswith("ports"):
        yield from (f"{path} has a port without a protocol" for port in value if "protocol" not in port)
        return
    quantity = re.fullmatch(r"([1-9][0-9]*)(m|k|M|G|Ki|Mi|Gi|)", value) if isinstance(value, str) else None
    if not quantity or int(quantity[1]) % (1024 if quantity[2].endswith("i") else 1000) == 0:
        yield f"{path} is {value!r}, which is no canonical quantity"


@functools.cache
def schema_problems(manifest, versions):
    """Remembered, because reading the schemas takes longer than all else, and the components have much in common."""
    return list(check.kube_problems(json.loads(manifest), versions))


def built_problems(manifests, versions):
    for manifest in manifests:
        yield from schema_problems(json.dumps(manifest), tuple(versions))
        yield from drift(manifest, f"{manifest['kind']}/{manifest['metadata']['name']}")
    yield from sense.problems(unhashed(manifests))


def claim_problems(manifests):
    """The annotations by which a deletion of the application leaves the marks."""
    kept = {"argocd.argoproj.io/sync-options": "Prune=false,Delete=false", "kustomize.toolkit.fluxcd.io/prune": "disabled"}
    for one in manifests:
        if one["kind"] == "PersistentVolumeClaim" and one["metadata"].get("annotations") != kept:
            yield f"the claim would be pruned: {one['metadata'].get('annotations')}"


def builds(cases, work, **_):
    for variant, versions in VARIANTS.items():
        example = choose(tree(work, f"builds-{variant}"), variant, "network-policy")
        texts = {version: kubectl.kustomize(example, version) for version in kubectl.PACKAGES}
        cases.case(f"builds: {variant}: kubectl {', '.join(texts)}",
                   [] if len(set(texts.values())) == 1 else ["they build different things"])
        manifests = documents(texts[kubectl.NEWEST])
        problems = [*built_problems(manifests, VARIANTS[variant]), *claim_problems(manifests)]
        cases.case(f"builds: {variant}: {len(manifests)} manifests on {', '.join(versions)}", problems)


def equals_chart(cases, work, **_):
    for variant in VARIANTS:
        for more in ([], ["network-policy"]):
            example = choose(tree(work, f"chart-{variant}-{len(more)}"), variant, *more)
            manifests = documents(kubectl.kustomize(example))
            cases.case(f"chart: {' and '.join([variant, *more])}", differences(manifests, example, variant))


# Parts that the example has not, and that a Deployment may have.
OWN = """
spec:
  replicas: 5
  strategy: { type: RollingUpdate, rollingUpdate: { maxSurge: 2, maxUnavailable: 0 } }
  template:
    metadata: { annotations: { example.com/note: kept } }
    spec:
      initContainers: [{ name: fonts, image: "shop/fonts:1" }]
      containers: [{ name: logs, image: "shop/logs:3" }]
      volumes: [{ name: fonts, configMap: { name: fonts } }]
"""


def own(cases, work, **_):
    for variant in VARIANTS:
        example = choose(tree(work, f"own-{variant}"), variant)
        file = example / "deployment.yaml"
        deployment, more = yaml.safe_load(file.read_text()), yaml.safe_load(OWN)["spec"]
        spec, pod = deployment["spec"], deployment["spec"]["template"]["spec"]
        spec.update(replicas=more["replicas"], strategy=more["strategy"])
        spec["template"]["metadata"].update(more["template"]["metadata"])
        for key, value in more["template"]["spec"].items():
            pod[key] = pod.get(key, []) + value
        file.write_text(yaml.safe_dump(deployment))
        manifests = documents(kubectl.kustomize(example))
        built = of_kind("Deployment", manifests)["spec"]
        lost = [f"{kind} {one['name']} is lost" for kind in more["template"]["spec"]
                for one in pod[kind] if one["name"] not in [other["name"] for other in built["template"]["spec"][kind]]]
        sqlite = variant.startswith("sqlite")
        wanted = (1, {"type": "Recreate"}) if sqlite else (5, more["strategy"])
        if (built["replicas"], built["strategy"]) != wanted:
            lost.append(f"{built['replicas']} replicas, {built['strategy']}")
        cases.case(f"own: {variant} keeps what is there", [*lost, *built_problems(manifests, ONE)])
        file.write_text(file.read_text().replace("name: orders\nspec", "name: shop\nspec"))
        cases.case(f"own: {variant} on a Deployment of another name", unrefused(example))
    cases.case("own: a Service of another name",
               unrefused(renamed(work, "own-service", "service.yaml", "name: orders\n", "name: shop\n")))
    example = choose(tree(work, "own-ports"), "postgres")
    service = yaml.safe_load((example / "service.yaml").read_text())
    service["spec"]["ports"].append({"name": "direct", "port": 3000, "protocol": "TCP"})
    (example / "service.yaml").write_text(yaml.safe_dump(service))
    ports = of_kind("Service", documents(kubectl.kustomize(example)))["spec"]["ports"]
    cases.case("own: a Service with a second port", [f"it leads past fencepost: {ports}"] if len(ports) > 1 else [])
    example = choose(tree(work, "own-hook"), "postgres")
    deployment = yaml.safe_load((example / "deployment.yaml").read_text())
    container = deployment["spec"]["template"]["spec"]["containers"][0]
    container["lifecycle"] = {"preStop": {"exec": {"command": ["sleep", "5"]}}}
    (example / "deployment.yaml").write_text(yaml.safe_dump(deployment))
    hook = set(next(one for one in containers(example) if one["name"] == "orders")["lifecycle"]["preStop"])
    cases.case("own: a preStop stays, and an API server refuses two", [] if hook == {"exec", "httpGet"} else [str(hook)])
    example = renamed(work, "own-container", "deployment.yaml", "- name: orders\n", "- name: shop\n")
    images = {one["name"]: "image" in one for one in containers(example)}
    cases.case("own: another name of the container adds one without an image, which an API server refuses",
               [] if images == {"shop": True, "orders": False} else [str(images)])


def renamed(work, name, file, old, new):
    """The example over Postgres, with other words in one of its files."""
    file = choose(tree(work, name), "postgres") / file
    file.write_text(file.read_text().replace(old, new))
    return file.parent


def containers(example):
    return of_kind("Deployment", documents(kubectl.kustomize(example)))["spec"]["template"]["spec"]["containers"]


def unrefused(example):
    """That some kubectl builds it, without a word."""
    for version in kubectl.PACKAGES:
        try:
            kubectl.kustomize(example, version)
            yield f"kubectl {version} builds it, without fencepost"
        except kubectl.Refused as refused:
            if "no matches for Id" not in str(refused):
                yield f"refused, but: {refused}"


def configs(cases, work, fencepost, **_):
    for file in sorted(SOURCE.glob("components/*/fencepost.yaml")):
        problems = guide.config_problems(fencepost, file.read_text(), work)
        cases.case(f"configs: {file.relative_to(SOURCE)}", problems)
    for variant in ("postgres", "postgres-classic"):
        copied = tree(work, f"ca-{variant}")
        for name, line in (("sidecar.yaml", "- { key: ca.crt"), ("fencepost.yaml", "tls: { ca_file")):
            file = copied / "components" / variant / name
            file.write_text(file.read_text().replace(f"# {line}", line))
        manifests = documents(kubectl.kustomize(choose(copied, variant)))
        config = of_kind("ConfigMap", manifests)["data"]["fencepost.yaml"]
        problems = [*built_problems(manifests, ONE), *guide.config_problems(fencepost, config, work)]
        mount = next(volume["secret"]["items"] for volume in of_kind("Deployment", manifests)["spec"]["template"]["spec"]["volumes"]
                     if volume["name"] == "fencepost-store")
        if pathlib.PurePath(yaml.safe_load(config)["store"]["tls"]["ca_file"]).name not in [item["path"] for item in mount]:
            problems.append(f"the CA is not mounted: {mount}")
        cases.case(f"configs: {variant} with a CA", problems)


def readme(cases, work, fencepost, **_):
    """Each kustomization of README.md stands beside the example's files, with the components in fencepost/."""
    text = (SOURCE / "README.md").read_text()
    blocks = re.findall(r"<!-- kustomization: ([a-z-]+) -->\n```yaml\n(.*?)```", text, re.DOTALL)
    cases.case("readme: blocks", [] if len(blocks) >= 2 else [f"{len(blocks)} are found"])
    for name, block in blocks:
        copied = tree(work, f"readme-{name}")
        (copied / "components").rename(copied / "fencepost")
        for source in ("deployment.yaml", "service.yaml"):
            shutil.copy(SOURCE / "example" / source, copied)
        (copied / "kustomization.yaml").write_text(block)
        texts = [kubectl.kustomize(copied, version) for version in kubectl.PACKAGES]
        manifests = documents(texts[-1])
        problems = [] if len(set(texts)) == 1 else ["two kubectls build different things"]
        problems += [problem for manifest in manifests for problem in check.kube_problems(manifest, ONE)]
        pod = of_kind("Deployment", manifests)["spec"]["template"]
        if [one["image"] for one in sense.fenceposts(pod)] != ["REGISTRY/fencepost:0.1.0"]:
            problems.append(f"the image: {sense.fenceposts(pod)}")
        port = of_kind("Service", manifests)["spec"]["ports"][0]["targetPort"]
        if port != (7080 if "fencepost/service" in block else 3000):
            problems.append(f"the Service leads to {port}")
        namespaces = {one["metadata"].get("namespace") for one in manifests}
        if namespaces != {yaml.safe_load(block).get("namespace")}:
            problems.append(f"the namespaces are {namespaces}")
        cases.case(f"readme: {name}", problems)
    for job in [one for block in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL) for one in documents(block) if one.get("kind") == "Job"]:
        # No Postgres is there to be migrated; that the program understands each argument is what counts.
        args = job["spec"]["template"]["spec"]["containers"][0]["args"]
        done = subprocess.run([fencepost, *args], capture_output=True, text=True, check=False, timeout=60, cwd=work,
                              env={"FENCEPOST_STORE": "postgres://nobody@127.0.0.1:1/none?sslmode=disable"})
        problems = [] if done.returncode == 1 and "127.0.0.1:1" in done.stderr else [f"{done.returncode}: {done.stderr}"]
        cases.case(f"readme: {job['metadata']['name']}", problems)


HEAD = """\
# The example with the component {0}, as `kubectl kustomize` builds it. Put in your own names,
# image, ports and routes. The pods reload a change of the ConfigMap. After a change of the store,
# of barrier.settle or of limits, run `kubectl rollout restart deployment/orders`.
"""


def plain(cases, work, fencepost, out, **_):
    for variant in VARIANTS:
        text = kubectl.kustomize(choose(tree(work, f"plain-{variant}"), variant))
        text = HEAD.format(variant) + "---\n" + HASHED.sub(NAME, text)
        if out:
            (out / f"{variant}.yaml").write_text(text)
        manifests = documents(text)
        # The name of the ConfigMap stays the same: the head of the file says when to restart.
        for one in manifests:
            if one["kind"] == "Deployment":
                one["spec"]["template"]["metadata"]["annotations"] = {"checksum/fencepost": "by hand"}
        problems = [*built_problems(manifests, VARIANTS[variant]), *claim_problems(manifests)]
        problems += guide.config_problems(fencepost, of_kind("ConfigMap", manifests)["data"]["fencepost.yaml"], work)
        cases.case(f"plain: {variant} on {', '.join(VARIANTS[variant])}", problems)


GROUPS = {"builds": builds, "chart": equals_chart, "own": own, "configs": configs, "readme": readme, "plain": plain}


if __name__ == "__main__":
    check.run(GROUPS, __doc__, out={"type": pathlib.Path})
