"""One core against two: fencepost and nginx on as many cores as they get, by taskset.

The load, the upstream and the store are not bound. They share the cores with the proxy, so that a
machine with few cores shows less than the proxy could do: nginx beside it says how much less. CPU
per request does not depend on that. It rises with the cores if these contend for something.
"""

import os

from . import servers
from .rounds import Cell, Marks, interleave, ratios

KINDS = (("bypass", "GET"), ("bypass", "POST"), ("equal", "POST"), ("rising", "POST"))


def _sizes():
    """One core, and each power of two up to all that this program may use."""
    cores, sizes = sorted(os.sched_getaffinity(0)), [1]
    while sizes[-1] * 2 <= len(cores):
        sizes.append(sizes[-1] * 2)
    return [(size, ",".join(map(str, cores[:size]))) for size in sizes]


def scaling(yard):
    """The same cells on one core and on more, and their ratios."""
    work, bare, cells, sizes = yard.work, yard.servers["bare"], {}, _sizes()
    started = []
    for size, cores in sizes:
        name = f"fencepost-{size}"
        store = f'url: "sqlite:{work.directory("scaling-" + name)}/marks.db", volatile: true'
        fence = servers.Fencepost(work, yard.program, bare, store, name, cores=cores)
        fence.marks = Marks(fence)
        inside = "    listen PORT;\n" + servers.PROXY
        outside = servers.upstream_block(bare.port)
        nginx = servers.nginx(work, f"nginx-{size}", inside, size, outside, cores)
        started += [fence, nginx]
        for method in ("GET", "POST"):
            cell = Cell(f"nginx on {size}", nginx, method, 64, also=(bare,))
            cells["nginx", method, size] = cell
        for kind, method in KINDS:
            marks = None if kind == "bypass" else fence.marks
            how = "plain" if kind == "bypass" else kind
            cell = Cell(f"{kind} on {size}", fence, method, 64, how, marks, (bare,))
            cells[kind, method, size] = cell
    # Cells that are compared follow each other.
    ordered = sorted(cells, key=lambda key: (key[0] == "rising", key[0], key[1], key[2]))
    found = [cells[key] for key in ordered]
    yard.cells += found
    interleave(work, found, yard.rounds, min(1, yard.seconds), yard.say)
    for kind, method in (("nginx", "GET"), ("nginx", "POST")) + KINDS:
        for size, _ in sizes[1:]:
            one, more = cells[kind, method, 1], cells[kind, method, size]
            faults = one.faults + more.faults
            text = f"{kind}, {method}, 64 connections: {size} cores against one"
            yard.verdicts.add(f"{text}, requests/s", ratios(more, one), faults=faults)
            own = "nginx" if kind == "nginx" else "fencepost"
            figure = (f"cpu/{own}-{size}", f"cpu/{own}-1")
            yard.verdicts.add(
                f"{text}, CPU per request", ratios(more, one, figure), faults=faults
            )
    for server in started:
        work.end(server.process)
