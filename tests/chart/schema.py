"""The configuration's part of the chart's values.schema.json is what `fencepost schema` prints, and lets old names through.

    schema.py --fencepost PATH            1, and what differs, where it is not
    schema.py --fencepost PATH --write    makes it so

The definitions of `fencepost schema` are the file's own `$defs`, so that their references stay as they are. A schema has no
message of its own for a field that was renamed. So fields with an old name pass it, and the templates refuse them.
"""

import argparse
import json
import pathlib
import subprocess
import sys

TOP = pathlib.Path(__file__).resolve().parents[2]
FILE = TOP / "charts" / "fencepost" / "values.schema.json"
# As in src/config/yaml/deserializer.rs: what had another name before 1.0. charts/fencepost/templates/_refusals.tpl names the new one.
RENAMED = {
    "Barrier": {"drain": "grace"},
    "RouteBarrier": {"drain": "grace"},
    "Claim": {"require_peer": "require_client"},
    "Route": {"require_peer": "require_client"},
    "Limits": {f"{limit}_per_peer": f"{limit}_per_client" for limit in ("connections", "in_flight")},
}


def wanted(fencepost):
    """What `properties.config` and `$defs` have to be."""
    schema = json.loads(subprocess.run([fencepost, "schema"], check=True, capture_output=True).stdout)
    definitions = schema.pop("$defs")
    dialect = schema.pop("$schema")
    for definition, names in RENAMED.items():
        for old, new in names.items():
            definitions[definition]["properties"][old] = {"description": f"Renamed to {new}; refused with that."}
    return dialect, schema, definitions


def differences(fencepost):
    dialect, config, definitions = wanted(fencepost)
    here = json.loads(FILE.read_text())
    for name, ours, theirs in (
        ("$schema", here.get("$schema"), dialect),
        ("properties.config", here["properties"].get("config"), config),
        ("$defs", here.get("$defs"), definitions),
    ):
        if ours != theirs:
            yield f"values.schema.json: {name} is not what `fencepost schema` prints: run tests/chart/schema.py --write"


def write(fencepost):
    dialect, config, definitions = wanted(fencepost)
    here = json.loads(FILE.read_text())
    here["$schema"], here["properties"]["config"], here["$defs"] = dialect, config, definitions
    FILE.write_text(json.dumps(here, indent=2, ensure_ascii=False) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fencepost", default=TOP / "target" / "debug" / "fencepost")
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    if args.write:
        write(args.fencepost)
    found = list(differences(args.fencepost))
    sys.exit("\n".join(found) or None)


if __name__ == "__main__":
    main()
