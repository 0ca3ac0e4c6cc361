"""The targets, and whether they are met: medians of ratios within one run, with the least and the
greatest.
"""

import statistics


class Verdicts:
    """The rows of the first table."""

    def __init__(self, partial=False):
        self.rows, self.partial = [], partial

    def add(self, figure, values, least=None, most=None, unit="", note="", faults=()):
        """A figure with its values over the rounds, and the bound that its median has to keep."""
        row = {
            "figure": figure,
            "target": _target(least, most, unit),
            "unit": unit,
            "note": note,
            "faults": list(faults),
            "values": list(values),
        }
        if values:
            middle = statistics.median(values)
            row.update(value=middle, least=min(values), greatest=max(values))
            row["met"] = (
                (least is None or middle >= least)
                and (most is None or middle <= most)
                and not faults
            )
            if faults:
                row["note"] = (note + " invalid samples: see below").strip()
        else:
            row.update(value=None, met=None)
            row["note"] = note or "not measured in this run"
        self.rows.append(row)

    def missing(self, figure, why, least=None, most=None, unit=""):
        """A row that cannot be measured, with the reason. Without one it was left out, by --only
        for instance.
        """
        if not why and self.partial:
            return
        self.add(figure, [], least, most, unit, why)


def _target(least, most, unit):
    if least is not None:
        return f"≥ {least:g}{unit}"
    return f"≤ {most:g}{unit}" if most is not None else ""
