"""The tables, in Markdown and JSON."""

import json
import statistics

MIB = 1 << 20

ABOUT = """Rates, latencies and CPU are medians over the rounds, with the least and the greatest in
brackets. The rounds are interleaved: each measures every cell once. A target is a ratio of two
cells of the same round. Everything shares the machine: wrk, the proxy, the upstream, the
store. CPU per request is utime + stime of the process tree over the requests of the run.
Memory is VmHWM of that run, the least over the rounds, since a process keeps what other cells
needed; where there are several processes, what is resident in the middle of the run, with
shared pages counted once (PSS). Every proxy gets the same bytes, with a token, which only
fencepost reads. For HTTP/2 (h2load) the column p50 has the mean and p99 the slowest."""


def _number(value):
    if value is None:
        return "–"
    if isinstance(value, int):
        return f"{value:,}"
    size = abs(value)
    return (
        f"{value:,.0f}"
        if size >= 1000
        else f"{value:.0f}" if size >= 100 else f"{value:.1f}" if size >= 10 else f"{value:.2f}"
    )


def _spread(values, scale=1.0):
    values = [value * scale for value in values]
    middle = _number(statistics.median(values))
    if len(values) == 1:
        return middle
    return f"{middle} ({_number(min(values))} to {_number(max(values))})"


def _targets(rows):
    lines = [
        "| figure | median | least to greatest | target | met | |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        met = "–" if row["met"] is None or not row["target"] else "yes" if row["met"] else "**no**"
        if row["value"] is None:
            lines.append(f"| {row['figure']} | – | | {row['target']} | – | {row['note']} |")
            continue
        span = (
            f"{_number(row['least'])} to {_number(row['greatest'])}"
            if len(row["values"]) > 1
            else ""
        )
        lines.append(
            f"| {row['figure']} | {_number(row['value'])}{row['unit']} | {span} | {row['target']} | {met} | "
            f"{row['note']} |"
        )
    return lines


def _cells(cells):
    lines = [
        "| case | method | connections | requests/s | p50, µs | p99, µs | CPU per request, µs | memory, MiB | "
        "wrong |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for cell in cells:
        used = ", ".join(f"{name} {_spread(cell.values(f'cpu/{name}'))}" for name in cell.roots)
        peak = ", ".join(
            f"{name} {_number(min(cell.values(f'memory/{name}')) / MIB)}" for name in cell.roots
        )
        lines.append(
            f"| {cell.name} | {cell.method} | {cell.connections} | {_spread(cell.values('rate'))} | "
            f"{_number(cell.median('p50'))} | {_number(cell.median('p99'))} | {used} | {peak} | "
            f"{len(cell.faults) or ''} |"
        )
    return lines


def markdown(head, yard):
    """The whole report."""
    lines = [
        "# What fencepost costs",
        "",
        f"Written by `{head['command']}`; `benches/run.sh` writes it again.",
        "",
        "| | |",
        "|---|---|",
    ]
    lines += [
        f"| {name} | {str(value).replace('|', chr(92) + '|')} |" for name, value in head.items()
    ]
    lines += ["", ABOUT, "", "## Targets", ""] + _targets(yard.verdicts.rows)
    measured = [cell for cell in yard.cells if cell.samples]
    if measured:
        lines += ["", "## Side by side", ""] + _cells(measured)
    for title, text, columns, rows in yard.tables:
        lines += [
            "",
            f"## {title}",
            "",
            text,
            "",
            "| " + " | ".join(columns) + " |",
            "|" + "---|" * len(columns),
        ]
        lines += [
            "| "
            + " | ".join(value if isinstance(value, str) else _number(value) for value in row)
            + " |"
            for row in rows
        ]
    faults = [fault for cell in yard.cells for fault in cell.faults]
    faults += [f"{row['figure']}: {fault}" for row in yard.verdicts.rows for fault in row["faults"]]
    if yard.skipped:
        lines += ["", "## Not measured", ""] + [f"- {what}" for what in yard.skipped]
    if faults:
        lines += ["", "## Invalid samples", ""] + [f"- {fault}" for fault in dict.fromkeys(faults)]
    return "\n".join(lines) + "\n"


def machine_readable(head, yard):
    """The same as JSON, with every sample."""
    return (
        json.dumps(
            {
                "head": head,
                "targets": yard.verdicts.rows,
                "not measured": yard.skipped,
                "cells": [
                    {
                        "case": cell.name,
                        "method": cell.method,
                        "connections": cell.connections,
                        "samples": cell.samples,
                    }
                    for cell in yard.cells
                    if cell.samples
                ],
                "tables": [
                    {
                        "title": title,
                        "about": text,
                        "columns": list(columns),
                        "rows": [list(row) for row in rows],
                    }
                    for title, text, columns, rows in yard.tables
                ],
            },
            indent=1,
        )
        + "\n"
    )
