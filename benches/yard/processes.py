"""Starts and stops what is measured: one temporary directory, unprivileged users, an end by process
id.

A child gets SIGTERM when this program dies in any way (`setpriv --pdeathsig`), so a killed run
leaves nothing behind.
"""

import os
import pwd
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time


class Failed(Exception):
    """A server or a tool did not do what it was started for. The text is for people."""


def free_port():
    """A port of the loopback that nobody listens on at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def text_of(path):
    """The text of a file, or nothing if there is none yet."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except FileNotFoundError:
        return ""


class Process:
    """One started program, with its log."""

    def __init__(self, name, child, log):
        self.name, self.child, self.log, self.pid = name, child, log, child.pid

    def stop(self, how=signal.SIGTERM, patience=30):
        """Asks it to end, waits, and kills it if it does not. Returns the seconds that took."""
        began = time.monotonic()
        if self.child.poll() is None:
            self.child.send_signal(how)
            try:
                self.child.wait(patience)
            except subprocess.TimeoutExpired:
                self.child.kill()
        self.child.wait()
        return time.monotonic() - began

    def wait_for(self, pattern, seconds=30):
        """The match of a pattern in its log, once it is there."""
        return self.until(
            lambda: re.search(pattern, text_of(self.log)), f"/{pattern}/ in its log", seconds
        )

    def until(self, true, what, seconds=30):
        """What `true` returns, as soon as that is something."""
        end = time.monotonic() + seconds
        while True:
            if found := true():
                return found
            if self.child.poll() is not None or time.monotonic() > end:
                how = (
                    "still runs"
                    if self.child.poll() is None
                    else f"ended with {self.child.returncode}"
                )
                raise Failed(f"{self.name} {how}, without {what}:\n{text_of(self.log)[-2000:]}")
            time.sleep(0.05)

    def listens(self, port):
        """Waits until the port takes a connection."""

        def open_now():
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", port)) == 0

        self.until(open_now, f"a listener on port {port}")


class Work:
    """The temporary directory of one run, and all that was started in it."""

    def __init__(self):
        self.path = tempfile.mkdtemp(prefix="yard-")
        os.chmod(self.path, 0o755)
        self.running = []
        self.root = os.getuid() == 0
        for name, what in ((signal.SIGTERM, 143), (signal.SIGHUP, 129)):
            signal.signal(name, lambda *_, what=what: (_ for _ in ()).throw(SystemExit(what)))

    def directory(self, name, user="nobody"):
        """A directory that this user may write to."""
        path = os.path.join(self.path, name)
        os.makedirs(path, exist_ok=True)
        if self.root:
            found = pwd.getpwnam(user)
            os.chown(path, found.pw_uid, found.pw_gid)
        return path

    def file(self, name, text):
        """A file that every user may read."""
        path = os.path.join(self.path, name)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(path, 0o644)
        return path

    def program(self, path):
        """A copy that every user may run: the folder of the original need not be open to all."""
        copy = os.path.join(self.directory("bin", "root"), os.path.basename(path))
        if not os.path.exists(copy):
            shutil.copyfile(path, copy)
            os.chmod(copy, 0o755)
        return copy

    def as_user(self, command, user="nobody"):
        """The command as that user (None: as this program's). It gets SIGTERM when this program
        dies.
        """
        before = ["setpriv", "--pdeathsig", "TERM"]
        if self.root and user:
            before += ["--reuid", user, "--regid", str(pwd.getpwnam(user).pw_gid), "--clear-groups"]
        return before + ["--"] + command

    def start(self, name, command, user="nobody", environment=None):
        """Starts a program in a session of its own, so that Ctrl-C reaches this program only."""
        log = os.path.join(self.path, f"{name}.log")
        with open(log, "wb") as out:
            child = subprocess.Popen(
                self.as_user(command, user),
                stdout=out,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                cwd=self.path,
                start_new_session=True,
                env={**os.environ, "HOME": self.path, **(environment or {})},
            )
        process = Process(name, child, log)
        self.running.append(process)
        return process

    def run(self, command, user="nobody", seconds=600):
        """Runs a program to its end, and returns what it printed."""
        ended = subprocess.run(
            self.as_user(command, user),
            capture_output=True,
            text=True,
            cwd=self.path,
            stdin=subprocess.DEVNULL,
            timeout=seconds,
            check=False,
            env={**os.environ, "HOME": self.path},
        )
        if ended.returncode:
            raise Failed(
                f"{' '.join(command[:6])} … ended with {ended.returncode}:\n{ended.stdout}{ended.stderr}"
            )
        return ended.stdout

    def end(self, process, how=signal.SIGTERM):
        """Stops one process before the others."""
        self.running.remove(process)
        return process.stop(how)

    def close(self):
        """Stops everything, the latest first, and removes the directory."""
        while self.running:
            process = self.running.pop()
            # SIGINT is Postgres' fast shutdown; with SIGTERM it waits for its clients.
            process.stop(
                signal.SIGINT if process.name.startswith("postgres") else signal.SIGTERM, 30
            )
        shutil.rmtree(self.path, ignore_errors=True)
