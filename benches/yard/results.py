"""The results file: sections with what was found in them, and what each was measured with.

A section is written as soon as it ends, and replaces what the file had of it. So an interrupted run
loses one section, and sections that were measured one by one make one report.
"""

import json
import os

from . import report

NAMES = ("results.json", "RESULTS.md")
# What stands between these lines in RESULTS.md and in README is the same: a test holds it.
BEGIN = "<!-- benches:begin -->"
END = "<!-- benches:end -->"


class Results:
    """What the files of one folder hold."""

    def __init__(self, folder, order, keep=False):
        self.folder, self.order = folder, order
        self.path = os.path.join(folder, NAMES[0])
        self.sections = self._read() if keep else {}

    def _read(self):
        if not os.path.exists(self.path):
            return {}
        with open(self.path, encoding="utf-8") as file:
            return json.load(file)["sections"]

    def has(self, name, digest):
        """Whether the section was measured to its end with this program."""
        found = self.sections.get(name)
        return bool(found) and not found["not measured"] and found["head"]["SHA-256"] == digest

    def put(self, name, section):
        """Enters a section, and writes both files."""
        self.sections[name] = section
        self.write()

    def write(self):
        """Writes the JSON, and the Markdown that is made from it."""
        os.makedirs(self.folder, exist_ok=True)
        rank = {name: number for number, name in enumerate(self.order)}
        names = sorted(self.sections, key=lambda name: rank.get(name, len(rank)))
        data = {"sections": {name: self.sections[name] for name in names}}
        self._replace(NAMES[0], _lines(data))
        self._replace(NAMES[1], report.markdown(data["sections"], self.short()))

    def short(self):
        """The table that README quotes, with the lines around it."""
        return f"{BEGIN}\n{report.short(self.sections)}\n{END}"

    def quote(self, readme):
        """Puts the short table between the two lines of README."""
        with open(readme, encoding="utf-8") as file:
            text = file.read()
        if text.count(BEGIN) != 1 or text.count(END) != 1:
            raise ValueError(f"{readme} needs the lines {BEGIN} and {END}, once each")
        before, after = text.split(BEGIN)[0], text.split(END)[1]
        _write(readme, before + self.short() + after)

    def _replace(self, name, text):
        _write(os.path.join(self.folder, name), text)


def _write(path, text):
    """Writes a file so that a reader finds the old text or the new one."""
    beside = path + ".new"
    with open(beside, "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(beside, path)


def _lines(data):
    """JSON with a line for each cell and each target."""

    def part(name, value):
        rows = ",\n".join(map(json.dumps, value)) if isinstance(value, list) else None
        return f"{json.dumps(name)}: " + (f"[\n{rows}\n]" if rows else json.dumps(value))

    sections = (
        f"{json.dumps(name)}: {{\n" + ",\n".join(part(*one) for one in section.items()) + "\n}"
        for name, section in data["sections"].items()
    )
    return '{"sections": {\n' + ",\n".join(sections) + "\n}}\n"
