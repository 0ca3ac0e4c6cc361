"""The tables in Markdown, made from what the results file holds."""

import statistics

MIB = 1 << 20

ABOUT = """Rates, latencies and CPU are medians over the rounds, with the least and the greatest in
brackets. The rounds are interleaved: each measures every cell once. A target is a ratio of two
cells of the same round. Everything shares the machine: wrk, the proxy, the upstream, the
store. No process is bound to a core, except in the section `scaling`. Every proxy keeps its
connections alive and has as many workers as fencepost has runtimes: one for each core.
CPU per request is utime + stime of the process tree over the requests of the run.
Memory is VmHWM of that run, the least over the rounds, since a process keeps what other cells
needed; where there are several processes, what is resident in the middle of the run, with
shared pages counted once (PSS). Every proxy gets the same bytes, with a token, which only
fencepost reads. A sample is invalid if a request broke, timed out or had an unexpected status, or
if fencepost counted another outcome; no target is met by one. For HTTP/2 (h2load) the column p50
has the mean and p99 the slowest."""

# What README quotes: the case as the results name it, and as README does.
SHORT = (
    ("core-64", "bare", "no proxy"),
    ("core-64", "nginx", "nginx"),
    ("core-64", "bypass", "fencepost, not fenced"),
    ("core-64", "rising-sqlite", "fencepost, rising tokens, SQLite"),
    ("core-64", "rising-postgres", "fencepost, rising tokens, Postgres"),
    ("core-64", "stale-postgres", "fencepost, stale tokens, refused"),
    ("core-64", "nginx-auth", "nginx `auth_request`, a service, Postgres"),
)


def number(value):
    """A figure with as many digits as are worth reading."""
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


def values(cell, figure):
    """A figure of each sample: a key of it, or a path as in `cpu/nginx`."""
    key, _, inner = figure.partition("/")
    return [sample[key][inner] if inner else sample[key] for sample in cell["samples"]]


def _median(cell, figure):
    return statistics.median(values(cell, figure))


def _spread(found):
    middle = number(statistics.median(found))
    if len(found) == 1:
        return middle
    return f"{middle} ({number(min(found))} to {number(max(found))})"


def _row(*columns):
    return "| " + " | ".join(columns) + " |"


def _met(rows):
    rows = [row for row in rows if row["target"]]
    return f"{sum(bool(row['met']) for row in rows)} of {len(rows)} targets are met."


def _targets(rows):
    lines = [
        "| figure | median | least to greatest | target | met | |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        met = "–" if row["met"] is None or not row["target"] else "yes" if row["met"] else "**no**"
        if row["value"] is None:
            lines.append(_row(row["figure"], "–", "", row["target"], "–", row["note"]))
            continue
        span = f"{number(row['least'])} to {number(row['greatest'])}"
        lines.append(
            _row(
                row["figure"],
                f"{number(row['value'])}{row['unit']}",
                span if len(row["values"]) > 1 else "",
                row["target"],
                met,
                row["note"],
            )
        )
    return lines


def _cells(cells):
    lines = [
        "| case | method | connections | requests/s | p50, µs | p99, µs | CPU per request, µs | memory, MiB | "
        "wrong |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for cell in cells:
        used = ", ".join(f"{name} {_spread(values(cell, f'cpu/{name}'))}" for name in cell["roots"])
        peak = ", ".join(
            f"{name} {number(min(values(cell, f'memory/{name}')) / MIB)}" for name in cell["roots"]
        )
        lines.append(
            _row(
                cell["case"],
                cell["method"],
                str(cell["connections"]),
                _spread(values(cell, "rate")),
                number(_median(cell, "p50")),
                number(_median(cell, "p99")),
                used,
                peak,
                str(len(cell["faults"]) or ""),
            )
        )
    return lines


def _measured(sections):
    """When and with what each section was measured."""
    lines = [
        "| section | when | command | rounds | took | program | CPU that others took |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, section in sections.items():
        head = section["head"]
        lines.append(
            _row(
                name,
                head["date"],
                f"`{head['command']}`".replace("|", "\\|"),
                f"{head['rounds']} of {head['seconds']} s",
                f"{head['took']:.0f} s",
                head["SHA-256"],
                head["others"],
            )
        )
    if len({section["head"]["SHA-256"] for section in sections.values()}) > 1:
        lines += ["", "**The sections were measured with different builds of fencepost.**"]
    return lines


def _all(sections, what):
    return [item for section in sections.values() for item in section[what]]


def markdown(sections, quoted):
    """The whole report."""
    lines = ["# What fencepost costs", "", "`benches/run.sh` writes this file.", ""]
    lines += [quoted]
    if not sections:
        return "\n".join(lines) + "\n"
    newest = max(sections.values(), key=lambda section: section["head"]["date"])["head"]
    own = ("date", "command", "rounds", "seconds", "took", "SHA-256", "others")
    lines += ["", "## Machine and programs", "", "| | |", "|---|---|"]
    lines += [
        _row(name, str(value).replace("|", "\\|"))
        for name, value in newest.items()
        if name not in own
    ]
    lines += ["", "## Sections", ""] + _measured(sections)
    rows = _all(sections, "targets")
    lines += ["", ABOUT, "", "## Targets", "", _met(rows), ""] + _targets(rows)
    measured = [cell for cell in _all(sections, "cells") if cell["samples"]]
    if measured:
        lines += ["", "## Side by side", ""] + _cells(measured)
    for table in _all(sections, "tables"):
        lines += ["", f"## {table['title']}", "", table["about"], "", _row(*table["columns"])]
        lines += ["|" + "---|" * len(table["columns"])]
        lines += [
            _row(*(value if isinstance(value, str) else number(value) for value in row))
            for row in table["rows"]
        ]
    left_out = _all(sections, "not measured")
    faults = [fault for cell in _all(sections, "cells") for fault in cell["faults"]]
    faults += [
        f"{row['figure']}: {fault}" for row in _all(sections, "targets") for fault in row["faults"]
    ]
    if left_out:
        lines += ["", "## Not measured", ""] + [f"- {what}" for what in left_out]
    if faults:
        lines += ["", "## Invalid samples", ""] + [f"- {fault}" for fault in dict.fromkeys(faults)]
    return "\n".join(lines) + "\n"


def short(sections):
    """The table that README quotes: POST of 1 KiB, 64 connections."""
    found = {}
    for cell in sections.get("core-64", {"cells": []})["cells"]:
        if cell["samples"] and cell["method"] == "POST":
            found[cell["case"]] = cell
    if not {case for _, case, _ in SHORT} <= found.keys():
        return "No full run is on record yet. `benches/run.sh` makes one."
    head = sections["core-64"]["head"]
    lines = [
        f"POST of 1 KiB, 64 connections, {head['machine']}; load, proxy, upstream and store share "
        f"the machine. Medians of {head['rounds']} interleaved rounds, {head['date'][:10]}. CPU and "
        "memory are of the proxy, the service and the store together.",
        "",
        "| | requests/s | of nginx's | p50, ms | CPU per request, µs | memory, MiB |",
        "|---|---|---|---|---|---|",
    ]
    for _, case, words in SHORT:
        cell = found[case]
        # What a user pays for: everything that runs besides the upstream.
        roots = [name for name in cell["roots"] if name != "upstream"] or cell["roots"]
        share = statistics.median(
            one / other
            for one, other in zip(values(cell, "rate"), values(found["nginx"], "rate"))
        )
        lines.append(
            _row(
                words + (" (invalid samples)" if cell["faults"] else ""),
                number(_median(cell, "rate")),
                f"{share:.2f}",
                f"{_median(cell, 'p50') / 1e3:.2f}",
                number(sum(_median(cell, f"cpu/{name}") for name in roots)),
                number(sum(min(values(cell, f"memory/{name}")) for name in roots) / MIB),
            )
        )
    return "\n".join(lines)
