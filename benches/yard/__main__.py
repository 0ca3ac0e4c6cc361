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

from . import bounds, cases, epochs, growth, machine, report, servers, single, suite, wire
from .processes import Failed, Work
from .targets import Verdicts

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

# Every section: its name, whether --quick has it, what runs it.
SECTIONS = (
    ("core", True, cases.core),
    ("commits", True, single.commits),
    ("handover", True, single.handover),
    ("memory", True, single.memory),
    ("growth-marks", False, growth.marks),
    ("growth-epochs", False, epochs.epochs),
    ("growth-connections", False, growth.connections),
    ("growth-bodies", False, growth.bodies),
    ("growth-proxies", False, growth.proxies),
    ("growth-hot", False, growth.hot),
    ("growth-slow-commit", False, growth.slow),
    ("http2", False, wire.http2),
    ("tls", False, wire.tls),
    ("bounds", False, bounds.memory),
    ("overload", False, bounds.overload),
    ("edge", False, suite.edge),
    ("demo", False, suite.demo),
)


class Yard:
    """One run: what was asked for, the servers, and what was found."""

    def __init__(self, options):
        self.program, self.envoy, self.service = options.binary, options.envoy, options.service
        self.other_build = options.other_build
        self.quick, self.only = options.quick, options.only
        self.rounds, self.seconds = options.rounds, options.seconds
        self.why_no_service = "the small service (benches/today) was not built"
        self.work, self.servers = Work(), cases.Servers(self)
        self.verdicts, self.cells, self.tables, self.skipped = (
            Verdicts(bool(options.only)),
            [],
            [],
            [],
        )
        self.load_before = os.getloadavg()

    def chosen(self, text):
        """Whether --only leaves this."""
        return not self.only or re.search(self.only, text)

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
        help="the cells of the targets only, two seconds each; writes to target/bench",
    )
    parser.add_argument(
        "--only",
        metavar="PATTERN",
        help="a regular expression: the sections and cells that have it, "
        "such as 'core', 'commits' or 'core (nginx|bypass) GET 64'; writes to target/bench",
    )
    parser.add_argument(
        "--binary",
        metavar="PATH",
        help="measures this program in place of target/release/fencepost",
    )
    parser.add_argument("--rounds", type=int, metavar="N", help="5 unless given")
    parser.add_argument(
        "--seconds", type=int, metavar="S", help="for each sample: 5 unless given, with --quick 2"
    )
    parser.add_argument(
        "--list", action="store_true", help="prints the sections and cells, and measures nothing"
    )
    parser.add_argument("--envoy", help=argparse.SUPPRESS)
    parser.add_argument("--service", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    options.rounds = options.rounds or 5
    options.seconds = options.seconds or (2 if options.quick else 5)
    options.other_build = bool(options.binary)
    options.binary = os.path.abspath(
        options.binary or os.path.join(TOP, "target/release/fencepost")
    )
    for name in ("envoy", "service"):
        path = getattr(options, name)
        setattr(options, name, path if path and os.path.exists(path) else None)
    return options


def names(quick):
    """What --only can choose: the cells of the core, and the other sections."""
    found = [f"core {name} {method} {many}" for name, method, many in cases.wanted(quick)]
    return found, [name for name, also, _ in SECTIONS if name != "core" and (also or not quick)]


def measure(yard):
    """Runs the sections. One that fails is said in the report, and the others go on."""
    for name, also_quick, run in SECTIONS:
        if yard.quick and not also_quick and not yard.only:
            continue
        if not (
            yard.chosen(name)
            or (yard.only or "").startswith(name)
            or name == "core"
            and any(map(yard.chosen, names(yard.quick)[0]))
        ):
            continue
        yard.say(f"{name}:")
        try:
            run(yard)
        except (Failed, OSError, ValueError) as problem:
            traceback.print_exc()
            yard.skipped.append(f"{name}: {str(problem).splitlines()[0]}")


def main(arguments):
    """Measures, and writes the report."""
    options = read(arguments)
    if options.list:
        print("\n".join(sum(names(options.quick), [])))
        return 0
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yard = Yard(options)
    try:
        measure(yard)
    finally:
        yard.work.close()
    shown = [word for word in arguments if not word.startswith(("--envoy=", "--service="))]
    head = machine.describe(yard, servers.Postgres.tool, shown)
    short = options.quick or options.only
    folder = os.path.join(TOP, "target/bench" if short else "benches")
    os.makedirs(folder, exist_ok=True)
    text = report.markdown(head, yard)
    for name, content in (
        ("RESULTS.md", text),
        ("results.json", report.machine_readable(head, yard)),
    ):
        with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
            file.write(content)
    if short:
        print(text)
    print(f"{os.path.relpath(folder)}/RESULTS.md and results.json are written", file=sys.stderr)
    return 1 if any(row["faults"] for row in yard.verdicts.rows) or yard.skipped else 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
