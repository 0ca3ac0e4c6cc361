"""Interleaved rounds over cells (A B C A B C), and what each sample has to satisfy to count.

A sample with an unexpected status, a broken connection or an unexpected outcome is marked invalid
and keeps its reason: it is shown, and no target is met by it.
"""

import statistics
import threading
import time

from . import cpu, load
from .processes import Failed

# Outcomes that fencepost may count during a cell of each kind. A request whose client (wrk) ended
# is no fault.
EXPECTED = {"open": {"unfenced"}, "equal": {"current"}, "stale": {"stale-token"}, "rising": {"advanced"}}
LEAP = 1_000_000


class Tokens:
    """A token that none of the resources has been sent a newer one than. Every case uses the same
    resources.
    """

    def __init__(self):
        self.token = 1000

    def rise(self):
        """The first token of a run whose tokens rise; afterwards `token` is beyond all of them."""
        first = self.token + 1
        self.token += LEAP
        return first

    def touch(self, _work):
        """Nothing to do behind a service that is no fencepost: each request is one transaction."""


class Marks(Tokens):
    """The tokens of a fencepost's resources."""

    def __init__(self, server):
        super().__init__()
        self.server, self.rested = server, None

    def touch(self, work):
        """Sends the newest token to each resource until its epoch is open and nothing is written
        any more. An epoch stays open for 5 s without requests.
        """
        if self.rested and self.rested[0] == self.token and time.monotonic() - self.rested[1] < 2:
            return
        for seconds in (1, 1, 2, 2, 4, 4, 8, 8, 16, 16):
            before = self.server.counts()[1]
            sent = load.wrk(
                work, self.server.url, "POST", 64, seconds, self.token, 0, "/item/", body=1
            )
            written = self.server.counts()[1] - before
            if sent["requests"] > 2 * load.KEYS and written < sent["requests"] / 200:
                self.rested = (self.token, time.monotonic())
                return
        raise Failed(f"{self.server.name}: its resources did not come to rest within a minute")


class Cell:
    """One thing to measure: a server, a method, a number of connections, and what is sent."""

    def __init__(
        self, name, server, method, connections, kind="plain", marks=None, also=(), run=None
    ):
        self.name, self.server, self.method, self.connections = name, server, method, connections
        # Seconds of a sample where the cell has no target: the run's own, unless set.
        self.seconds = None
        self.kind, self.marks, self.run = kind, marks, run
        self.roots = dict(server.roots)
        for other in also:
            self.roots.update(other.roots)
        self.samples, self.lost = [], []

    @property
    def title(self):
        """What --only looks at."""
        return f"{self.name} {self.method} {self.connections}"

    def arguments(self):
        """What load.wrk sends for this cell."""
        kind = self.kind
        token, step = (1000, 0) if self.marks is None else (self.marks.token, 0)
        if kind == "stale":
            token -= 1
        elif kind in ("rising", "today"):
            token, step = self.marks.rise(), 1
        return {"token": token, "step": step, "prefix": "/item/" if self.marks else "/open/"}

    def warm(self, work):
        """A second of the load that is measured next. Nothing of it counts."""
        if self.run:
            self.run(work, self.connections, 1)
        else:
            load.wrk(work, self.server.url, self.method, self.connections, 1, **self.arguments())

    def sample(self, work, seconds):
        """One run: rates, latencies, CPU per request and peak memory of each process, and what was
        wrong.
        """
        # The first second of a cell is no sample: connections, caches and pages come into being.
        if self.kind in ("equal", "stale"):
            self.marks.touch(work)
        elif self.kind == "plain":
            if not self.samples:
                self.warm(work)
        elif self.kind in ("rising", "today"):
            if not self.samples:
                self.marks.touch(work)
                self.warm(work)
        counts = self.server.counts() if hasattr(self.server, "counts") else None
        reset = all([cpu.reset_peak(root) for root in self.roots.values()])
        shared = {}
        look = threading.Timer(
            seconds / 2,
            lambda: shared.update(
                (name, cpu.proportional(root))
                for name, root in self.roots.items()
                if len(cpu.tree(root)) > 1
            ),
        )
        before = {name: cpu.seconds(root) for name, root in self.roots.items()}
        others = cpu.Others()
        look.start()
        if self.run:
            found = self.run(work, self.connections, seconds)
        else:
            found = load.wrk(
                work, self.server.url, self.method, self.connections, seconds, **self.arguments()
            )
        used = {name: cpu.seconds(root) - before[name] for name, root in self.roots.items()}
        found["cpu"] = {name: 1e6 * used[name] / max(found["requests"], 1) for name in used}
        found["others"] = others.share()
        look.join()
        # Processes that share pages would count them several times: of those it is what is resident
        # under load.
        found["memory"] = {
            name: shared.get(name) or cpu.peak(root) for name, root in self.roots.items()
        }
        found["peak_is_of_this_run"] = reset
        found["at"] = time.strftime("%H:%M:%S", time.gmtime())
        found["invalid"] = self.wrong(found, counts)
        self.samples.append(found)
        return found

    def wrong(self, found, before):
        """Everything about the sample that was not expected, as text for people."""
        wrong = []
        if found["broken"]:
            wrong.append(f"{found['broken']} broken or timed out")
        refused = found["requests"] if self.kind == "stale" else 0
        if found["refused"] != refused:
            wrong.append(f"{found['refused']} answers of 400 and above, {refused} expected")
        if not found["requests"]:
            wrong.append("no request was answered")
        if before:
            outcomes, written = self.server.counts()
            outcomes = {name: count - before[0].get(name, 0) for name, count in outcomes.items()}
            found["written"] = (written - before[1]) / max(found["requests"], 1)
            good = EXPECTED["open" if self.marks is None else self.kind]
            counted = sum(outcomes.get(name, 0) for name in good)
            # What was under way when the load ended is answered to nobody.
            under_way = self.connections * (16 if self.run else 1)
            if not found["requests"] <= counted <= found["requests"] + under_way:
                wrong.append(
                    f"fencepost counted {counted:.0f} of {found['requests']} requests as {'/'.join(good)}"
                )
            strange = {
                name: int(count)
                for name, count in outcomes.items()
                if count and name not in good | {"request-timeout"}
            }
            if strange:
                wrong.append(f"outcomes {strange}")
            if self.kind in ("equal", "stale") and found["written"] > 0.01:
                wrong.append(
                    f"{found['written']:.3f} resources written per request: epochs were not at rest"
                )
        return wrong

    def values(self, figure):
        """A figure of each sample: a key of it, or a path as in `cpu/nginx`. Invalid samples count
        as well.
        """
        key, _, inner = figure.partition("/")
        return [sample[key][inner] if inner else sample[key] for sample in self.samples]

    def record(self):
        """What the results file keeps."""
        return {
            "case": self.name,
            "method": self.method,
            "connections": self.connections,
            "roots": list(self.roots),
            "samples": self.samples,
            "faults": self.faults,
        }

    def median(self, figure):
        """The median over the samples."""
        return statistics.median(self.values(figure))

    @property
    def faults(self):
        """What was wrong in any sample, and what ended the measurement of the cell."""
        return self.lost + [
            f"{self.title}: round {number}: {'; '.join(sample['invalid'])}"
            for number, sample in enumerate(self.samples, 1)
            if sample["invalid"]
        ]


def interleave(work, cells, rounds, seconds, say):
    """Measures every cell once per round. Each round has the same order. A cell that fails is not
    tried again.
    """
    for number in range(1, rounds + 1):
        for cell in [cell for cell in cells if not cell.lost]:
            try:
                found = cell.sample(work, cell.seconds or seconds)
            except Failed as problem:
                cell.lost.append(f"{cell.title}: round {number}: {problem}")
                say(cell.lost[-1])
                continue
            say(
                f"round {number}: {cell.title:34} {found['rate']:8.0f}/s  p50 {found['p50']:7.0f} µs  "
                + "  ".join(f"{name} {value:.1f} µs" for name, value in found["cpu"].items())
                + ("  INVALID: " + "; ".join(found["invalid"]) if found["invalid"] else "")
            )


def ratios(above, below, figure="rate"):
    """The figure of one cell over that of another, for each round in which both were measured."""
    key = figure if isinstance(figure, tuple) else (figure, figure)
    return [one / other for one, other in zip(above.values(key[0]), below.values(key[1])) if other]
