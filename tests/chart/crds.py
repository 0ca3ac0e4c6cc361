"""The Prometheus operator's objects: Kubernetes' schemas have none for them, so the fields that the chart uses are here."""

import jsonschema

VERSIONS = {"monitoring.coreos.com/v1"}

LABELS = {"type": "object", "additionalProperties": {"type": "string"}}
TIME = {"type": "string", "pattern": "^([0-9]+(ms|[smhdwy]))+$"}


def closed(properties, required=()):
    return {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}


RELABEL = closed({
    "sourceLabels": {"type": "array", "items": {"type": "string"}}, "modulus": {"type": "integer"},
    **{name: {"type": "string"} for name in ("separator", "targetLabel", "regex", "replacement")},
    "action": {"enum": "replace keep drop hashmod labelmap labeldrop labelkeep lowercase uppercase keepequal dropequal".split()},
})
ENDPOINT = closed({
    "port": {"type": "string"}, "path": {"type": "string"}, "interval": TIME, "scrapeTimeout": TIME,
    "relabelings": {"type": "array", "items": RELABEL}, "metricRelabelings": {"type": "array", "items": RELABEL},
}, ["port"])
SELECTOR = closed({"matchLabels": LABELS}, ["matchLabels"])
RULE = closed({
    "alert": {"type": "string"}, "record": {"type": "string"}, "expr": {"type": ["string", "integer"]}, "for": TIME,
    "keep_firing_for": TIME, "labels": LABELS, "annotations": LABELS,
}, ["expr"])
GROUP = closed({
    "name": {"type": "string"}, "interval": TIME, "limit": {"type": "integer"}, "labels": LABELS,
    "rules": {"type": "array", "items": RULE, "minItems": 1},
}, ["name", "rules"])
SPECS = {
    "PodMonitor": closed({"selector": SELECTOR, "podMetricsEndpoints": {"type": "array", "items": ENDPOINT, "minItems": 1}},
                         ["selector", "podMetricsEndpoints"]),
    "ServiceMonitor": closed({"selector": SELECTOR, "endpoints": {"type": "array", "items": ENDPOINT, "minItems": 1}},
                             ["selector", "endpoints"]),
    "PrometheusRule": closed({"groups": {"type": "array", "items": GROUP, "minItems": 1}}, ["groups"]),
}
META = closed({"name": {"type": "string", "pattern": "^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"}, "namespace": {"type": "string"},
               "labels": LABELS, "annotations": LABELS}, ["name", "namespace"])


def problems(manifest):
    """What an API server with the operator's definitions would refuse. A kind that is not here is a problem as well."""
    kind = manifest["kind"]
    if kind not in SPECS:
        yield f"{kind}: nothing here says what it may have"
        return
    whole = closed({"apiVersion": {}, "kind": {}, "metadata": META, "spec": SPECS[kind]}, ["metadata", "spec"])
    for error in jsonschema.Draft202012Validator(whole).iter_errors(manifest):
        yield f"{kind}/{manifest['metadata']['name']}: {'.'.join(map(str, error.path))}: {error.message}"
