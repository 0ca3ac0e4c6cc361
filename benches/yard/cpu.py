"""What a process and its children use: CPU from /proc/PID/stat, memory from /proc/PID/status and
smaps_rollup.

The kernel scales utime and stime so that their sum is the exact run time; it is told in ticks of 10
ms. Children that have ended and were waited for count by their parent's cutime and cstime.
"""

import os
import time

TICK = os.sysconf("SC_CLK_TCK")


def _stat(pid):
    """The fields of /proc/PID/stat behind the name, which may have spaces and brackets."""
    with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
        return file.read().rpartition(")")[2].split()


def tree(root):
    """The process and all that descend from it."""
    parents = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                parents.setdefault(int(_stat(name)[1]), []).append(int(name))
            except OSError:
                pass
    found, new = [], [root]
    while new:
        pid = new.pop()
        found.append(pid)
        new += parents.get(pid, [])
    return found


def seconds(root):
    """CPU seconds that the tree has used so far."""
    ticks = 0
    for pid in tree(root):
        try:
            ticks += sum(int(field) for field in _stat(pid)[11:15])
        except OSError:
            pass
    return ticks / TICK


class Others:
    """How much of the machine other programs take meanwhile: a run beside them says little about
    the machine alone.
    """

    def __init__(self):
        self.began, self.busy, self.own = time.monotonic(), self._busy(), seconds(os.getpid())

    @staticmethod
    def _busy():
        """CPU seconds of everything: user, nice, system, interrupts, and what the hypervisor gave
        to other machines.
        """
        with open("/proc/stat", encoding="utf-8") as file:
            fields = [int(field) for field in file.readline().split()[1:]]
        return sum(fields[:3] + fields[5:8]) / TICK

    def share(self):
        """The part of all cores that neither this program nor its children had since the start."""
        busy, own = self._busy() - self.busy, seconds(os.getpid()) - self.own
        return max(0.0, busy - own) / (time.monotonic() - self.began) / os.cpu_count()


def _status(pid, field):
    with open(f"/proc/{pid}/status", encoding="utf-8") as file:
        for line in file:
            if line.startswith(field + ":"):
                return int(line.split()[1]) * 1024
    return 0


def _sum(root, look):
    total = 0
    for pid in tree(root):
        try:
            total += look(pid)
        except OSError:
            pass
    return total


def peak(root):
    """The sum of the peaks of resident memory (VmHWM), in bytes. Pages that processes share count
    for each.
    """
    return _sum(root, lambda pid: _status(pid, "VmHWM"))


def resident(root):
    """Resident memory (VmRSS) now, in bytes. Pages that processes share count for each."""
    return _sum(root, lambda pid: _status(pid, "VmRSS"))


def anonymous(root):
    """Resident memory now that is no page of a file (RssAnon), in bytes."""
    return _sum(root, lambda pid: _status(pid, "RssAnon"))


def proportional(root):
    """Resident memory now, in bytes, with shared pages divided among those that share them."""

    def look(pid):
        with open(f"/proc/{pid}/smaps_rollup", encoding="utf-8") as file:
            return next(int(line.split()[1]) * 1024 for line in file if line.startswith("Pss:"))

    return _sum(root, look)


def reset_peak(root):
    """Lets VmHWM start again from what is resident now. Returns whether that was allowed."""
    try:
        for pid in tree(root):
            with open(f"/proc/{pid}/clear_refs", "w", encoding="utf-8") as file:
                file.write("5")
    except OSError:
        return False
    return True
