"""The command line of the yardstick. `benches/run.sh` installs what is needed, builds, and calls
this.
"""

import argparse
import os
import re
import resource
import sys
import time
import traceback

from . import (
    bounds,
    cases,
    epochs,
    growth,
    machine,
    scaling,
    servers,
    single,
    suite,
    wire,
)
from .processes import Failed, Work
from .results import Results
from .targets import Verdicts

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

# Every section: its name, the seconds it takes by default on 2 cores, the same with --quick (0: it
# has no part there), what runs it. In all: less than 40 minutes.
SECTIONS = (
    ("core-1", 290, 55, cases.core(1)),
    ("core-64", 350, 260, cases.core(64)),
    ("core-256", 290, 90, cases.core(256)),
    ("commits", 80, 80, single.commits),
    ("handover", 40, 40, single.handover),
    ("memory", 25, 25, single.memory),
    ("scaling", 105, 0, scaling.scaling),
    ("growth-marks", 240, 0, growth.marks),
    ("growth-epochs", 180, 0, epochs.epochs),
    ("growth-connections", 70, 0, growth.connections),
    ("growth-bodies", 25, 0, growth.bodies),
    ("growth-proxies", 20, 0, growth.proxies),
    ("growth-hot", 20, 0, growth.hot),
    ("growth-slow-commit", 30, 0, growth.slow),
    ("http2", 120, 0, wire.http2),
    ("tls", 70, 0, wire.tls),
    ("bounds", 90, 0, bounds.memory),
    ("overload", 45, 0, bounds.overload),
    ("edge", 80, 0, suite.edge),
    ("demo", 220, 0, suite.demo),
)
ORDER = [name for name, *_ in SECTIONS]


class Yard:
    """One run: what was asked for, the servers, and what was found."""

    def __init__(self, options):
        self.program, self.envoy, self.service = options.binary, options.envoy, options.service
        self.other_build = options.other_build
        self.quick, self.only = options.quick, options.only
        self.rounds, self.seconds = options.rounds, options.seconds
        self.why_no_service = "the small service (benches/today) was not built"
        self.work, self.servers = Work(), cases.Servers(self)
        self.failed = False
        self.begin()

    def begin(self):
        """Forgets what the section before found."""
        self.verdicts = Verdicts(bool(self.only))
        self.cells, self.tables, self.skipped = [], [], []

    def faults(self):
        """What was wrong in this section."""
        faults = [fault for cell in self.cells for fault in cell.faults]
        return faults + [fault for row in self.verdicts.rows for fault in row["faults"]]

    def section(self, head):
        """What the results file keeps of this section."""
        return {
            "head": head,
            "targets": self.verdicts.rows,
            "not measured": self.skipped,
            "cells": [cell.record() for cell in self.cells if cell.samples or cell.lost],
            "tables": [
                {
                    "title": title,
                    "about": about,
                    "columns": list(columns),
                    "rows": [list(row) for row in rows],
                }
                for title, about, columns, rows in self.tables
            ],
        }

    def chosen(self, text):
        """Whether --only leaves this."""
        return (
            not self.only
            or any(text == name or text.startswith(name + " ") for name in self.only.split("|"))
            or re.search(self.only, text)
        )

    @staticmethod
    def say(text):
        """Progress, which is no part of the report."""
        print(f"{time.strftime('%H:%M:%S', time.gmtime())} {text}", file=sys.stderr, flush=True)


def read(arguments):
    """The options."""
    parser = argparse.ArgumentParser(
        prog="benches/run.sh", description="Measures fencepost beside other proxies."
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="the sections and cells of the targets only; writes to target/bench",
    )
    parser.add_argument(
        "--only",
        metavar="PATTERN",
        help="a regular expression: the sections and cells that have it, "
        "such as 'core', 'commits' or 'core-64 (nginx|bypass) GET'; writes to target/bench",
    )
    parser.add_argument(
        "--binary",
        metavar="PATH",
        help="measures this program in place of target/release/fencepost",
    )
    parser.add_argument(
        "--append",
        action="store_true",
        help="keeps the sections that the results file has, and writes to benches. With --only "
        "SECTION|SECTION… it measures these; alone, those that the file lacks for this program",
    )
    parser.add_argument("--out", metavar="FOLDER", help="where RESULTS.md and results.json go")
    parser.add_argument(
        "--readme",
        action="store_true",
        help="writes RESULTS.md from results.json and the short table into README; measures nothing",
    )
    parser.add_argument("--rounds", type=int, metavar="N", help="5 unless given")
    parser.add_argument("--seconds", type=int, metavar="S", help="for each sample: 2 unless given")
    parser.add_argument(
        "--list",
        action="store_true",
        help="prints the sections with the time they take, and the cells; measures nothing",
    )
    parser.add_argument("--envoy", help=argparse.SUPPRESS)
    parser.add_argument("--service", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    options.rounds = options.rounds or 5
    options.seconds = options.seconds or 2
    options.other_build = bool(options.binary)
    options.binary = os.path.abspath(
        options.binary or os.path.join(TOP, "target/release/fencepost")
    )
    whole = options.only is None or set(options.only.split("|")) <= set(ORDER)
    if options.append and (options.quick or not whole):
        parser.error("--append takes whole sections: no --quick, and --only SECTION|SECTION…")
    kept = options.append or options.readme or not (options.quick or options.only)
    options.out = options.out or os.path.join(TOP, "benches" if kept else "target/bench")
    for name in ("envoy", "service"):
        path = getattr(options, name)
        setattr(options, name, path if path and os.path.exists(path) else None)
    return options


def cells(quick, section):
    """What --only can choose of a section besides its name."""
    if not section.startswith("core-"):
        return []
    many = int(section.removeprefix("core-"))
    return [f"{section} {name} {method}" for name, method, _ in cases.wanted(quick, many)]


def planned(options, results):
    """The sections to measure: name, expected seconds, what runs them."""
    exact = set((options.only or "").split("|"))
    found = []
    for name, full, quick, run in SECTIONS:
        if options.only and exact <= set(ORDER):
            chosen = name in exact
        elif options.only:
            texts = [name, *cells(options.quick, name)]
            chosen = options.only.startswith(name + " ") or any(
                re.search(options.only, text) for text in texts
            )
        elif options.append:
            chosen = not results.has(name, machine.digest(options.binary))
        else:
            chosen = quick or not options.quick
        if chosen:
            found.append((name, quick if options.quick and quick else full, run))
    return found


def measure(yard, results, plan, command):
    """Runs the sections, and writes each to the files when it ends. One that fails is said in the
    report, and the others go on.
    """
    digest, left = machine.digest(yard.program), sum(seconds for _, seconds, _ in plan)
    yard.say(f"{len(plan)} sections, about {left / 60:.0f} minutes")
    for name, seconds, run in plan:
        yard.say(f"{name}: about {seconds / 60:.1f} minutes")
        yard.begin()
        began = time.monotonic()
        try:
            run(yard)
        except (Failed, OSError, ValueError) as problem:
            traceback.print_exc()
            yard.skipped.append(f"{name}: {str(problem).splitlines()[0]}")
        took = time.monotonic() - began
        head = {
            "date": machine.now(),
            "command": command,
            "rounds": yard.rounds,
            "seconds": yard.seconds,
            "took": round(took, 1),
            "SHA-256": digest,
            "others": machine.others(yard.cells),
            **machine.describe(yard, servers.Postgres.tool),
        }
        results.put(name, yard.section(head))
        yard.say(f"{name}: took {took:.0f} s")
        yard.failed = yard.failed or bool(yard.skipped or yard.faults())


def main(arguments):
    """Measures, and writes the report."""
    options = read(arguments)
    if options.list:
        for name, full, quick, _ in SECTIONS:
            if quick or not options.quick:
                print(f"{name:20} about {quick if options.quick else full} s")
                print("".join(f"    {text}\n" for text in cells(options.quick, name)), end="")
        return 0
    results = Results(options.out, ORDER, options.append or options.readme)
    if options.readme:
        results.write()
        results.quote(os.path.join(TOP, "README.md"))
        return 0
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    shown = [word for word in arguments if not word.startswith(("--envoy=", "--service="))]
    # Where things lie on this machine is nobody's concern.
    shown = [os.path.basename(word) if word.startswith("/") else word for word in shown]
    plan = planned(options, results)
    yard = Yard(options)
    try:
        measure(yard, results, plan, " ".join(["benches/run.sh", *shown]))
    finally:
        yard.work.close()
    written = os.path.join(options.out, "RESULTS.md")
    if options.quick or options.only and not options.append:
        with open(written, encoding="utf-8") as file:
            print(file.read())
    print(f"{os.path.relpath(written)} and results.json are written", file=sys.stderr)
    return 1 if yard.failed else 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
