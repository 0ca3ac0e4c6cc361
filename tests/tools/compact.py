"""Writes JSON files with whatever fits on a line of 160 columns on one line.

    compact.py FILE...     after an export from Grafana, for instance
"""

import json
import pathlib
import sys


def text(value, indent, before):
    whole = json.dumps(value, ensure_ascii=False)
    if not isinstance(value, (dict, list)) or not value or indent + before + len(whole) <= 160:
        return whole
    inside = " " * (indent + 2)
    if isinstance(value, list):
        lines = [inside + text(one, indent + 2, 1) for one in value]
        return "[\n" + ",\n".join(lines) + "\n" + " " * indent + "]"
    lines = [f"{inside}{json.dumps(key)}: {text(one, indent + 2, len(key) + 5)}" for key, one in value.items()]
    return "{\n" + ",\n".join(lines) + "\n" + " " * indent + "}"


for name in sys.argv[1:]:
    file = pathlib.Path(name)
    file.write_text(text(json.loads(file.read_text()), 0, 0) + "\n")
