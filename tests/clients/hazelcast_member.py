"""A Hazelcast member with one FencedLock: its side of the recipe in docs/clients/python.md.

No Hazelcast server can be installed where the tests run, so this speaks the client protocol itself
(https://github.com/hazelcast/hazelcast-client-protocol), with the codecs of Hazelcast's own client.
The lock and its sessions behave as documented: the fence grows whenever a free lock is taken, a
holder that locks again gets the same fence, and a session that has had no heartbeat for its time to
live ends and releases its lock
(https://docs.hazelcast.com/hazelcast/latest/data-structures/fencedlock).

    hazelcast_member.py [--ttl SECONDS]

Prints its port. Any further output is an error: a client asked for something that is unknown here.
"""

import argparse
import itertools
import socketserver
import struct
import sys
import threading
import time
import uuid

from hazelcast import errors
from hazelcast.core import Address, MemberInfo, MemberVersion
from hazelcast.protocol import ErrorHolder, RaftGroupId
from hazelcast.protocol.builtin import FixSizedTypesCodec, ListMultiFrameCodec, StringCodec
from hazelcast.protocol.codec.custom.address_codec import AddressCodec
from hazelcast.protocol.codec.custom.error_holder_codec import ErrorHolderCodec
from hazelcast.protocol.codec.custom.member_info_codec import MemberInfoCodec
from hazelcast.protocol.codec.custom.raft_group_id_codec import RaftGroupIdCodec

# Flags of a frame.
WHOLE, FINAL, EVENT = 0xC000, 0x2000, 0x0200

AUTHENTICATE, CLUSTER_VIEW, MEMBERS_VIEW = 0x000100, 0x000300, 0x000302
PING, BACKUP_LISTENER, CREATE_GROUP = 0x000B00, 0x000F00, 0x1E0100
CREATE_SESSION, CLOSE_SESSION, HEARTBEAT, THREAD_ID = 0x1F0100, 0x1F0200, 0x1F0300, 0x1F0400
LOCK, TRY_LOCK, UNLOCK = 0x070100, 0x070200, 0x070300

GROUP = RaftGroupId("default", 0, 1)
MEMBER, CLUSTER = uuid.UUID(int=1), uuid.UUID(int=2)
NO_FENCE = 0


class Refused(Exception):
    """An error that the client gets as an answer."""

    def __init__(self, code, name):
        super().__init__(name)
        self.code, self.name = code, name


def session_expired():
    return Refused(errors._SESSION_EXPIRED_EXCEPTION, "SessionExpiredException")


class FencedLock:
    """The lock, and the sessions of its clients."""

    def __init__(self, ttl):
        self.ttl = ttl
        self.changed = threading.Condition()
        self.sessions = {}  # id: when it ends
        self.ids, self.threads, self.fences = itertools.count(1), itertools.count(1), itertools.count(7)
        self.holder, self.fence = None, NO_FENCE

    def begin(self):
        with self.changed:
            session = next(self.ids)
            self.sessions[session] = time.monotonic() + self.ttl
            return session

    def heartbeat(self, session):
        with self.changed:
            self.check(session)
            self.sessions[session] = time.monotonic() + self.ttl

    def end(self, session):
        with self.changed:
            self.forget()
            ended = self.sessions.pop(session, None) is not None
            self.forget()
            return ended

    def forget(self):
        """Ends the sessions whose time is over, and frees the lock of one that has ended."""
        now = time.monotonic()
        for session in [session for session, until in self.sessions.items() if until < now]:
            del self.sessions[session]
        if self.holder and self.holder[0] not in self.sessions:
            self.holder = None
            self.changed.notify_all()

    def check(self, session):
        self.forget()
        if session not in self.sessions:
            raise session_expired()

    def lock(self, session, thread, wait):
        until = time.monotonic() + wait
        with self.changed:
            while True:
                self.check(session)
                if self.holder is None:
                    self.holder, self.fence = (session, thread), next(self.fences)
                if self.holder == (session, thread):
                    return self.fence
                if time.monotonic() >= until:
                    return NO_FENCE
                self.changed.wait(0.05)

    def unlock(self, session, thread):
        with self.changed:
            self.check(session)
            if self.holder != (session, thread):
                code = errors._ILLEGAL_MONITOR_STATE
                raise Refused(code, "IllegalMonitorStateException")
            self.holder = None
            self.changed.notify_all()


def frame(content, flags):
    return struct.pack("<iH", len(content) + 6, flags) + content


def message(kind, correlation, fixed=b"", rest=b"", event=False):
    """A message; `rest` are the frames behind the first one, the last of them with FINAL."""
    filler = struct.pack("<i", -1) if event else b"\0"
    flags = WHOLE | (EVENT if event else 0) | (0 if rest else FINAL)
    return frame(struct.pack("<iq", kind, correlation) + filler + fixed, flags) + bytes(rest)


def packed(name):
    """A UUID, as it stands in the first frame."""
    buffer = bytearray(17)
    FixSizedTypesCodec.encode_uuid(buffer, 0, name)
    return bytes(buffer)


class Client(socketserver.StreamRequestHandler):
    """One connection of a client. Each request has a thread, since a wait for the lock may be long."""

    def handle(self):
        self.sending = threading.Lock()
        if self.rfile.read(3) != b"CP2":
            print("not a client", flush=True)
            return
        while request := self.read():
            threading.Thread(target=self.answer, args=request, daemon=True).start()

    def read(self):
        """The kind of the next request, its correlation id, and what else its first frame has."""
        first, flags = None, 0
        while not flags & FINAL:
            try:
                head = self.rfile.read(6)
            except ConnectionResetError:
                return None
            if len(head) < 6:
                return None
            length, flags = struct.unpack("<iH", head)
            content = self.rfile.read(length - 6)
            first = content if first is None else first
        kind, correlation, _partition = struct.unpack_from("<iqi", first)
        return kind, correlation, first[16:]

    def send(self, *args, **kwargs):
        with self.sending:
            self.wfile.write(message(*args, **kwargs))

    def answer(self, kind, correlation, fixed):
        try:
            fixed, rest = self.outcome(kind, correlation, fixed)
            self.send(kind + 1, correlation, fixed, rest)
        except Refused as refused:
            holder = ErrorHolder(refused.code, refused.name, "", [])
            rest = bytearray()
            ListMultiFrameCodec.encode(rest, [holder], ErrorHolderCodec.encode, True)
            self.send(errors.EXCEPTION_MESSAGE_TYPE, correlation, rest=rest)
        except OSError:
            pass  # the client has left

    def outcome(self, kind, correlation, fixed):
        """Does what is asked for. Returns the rest of the answer's first frame, and its other frames."""
        lock, address = self.server.lock, Address(*self.server.server_address)
        rest = bytearray()
        if kind == AUTHENTICATE:
            AddressCodec.encode(rest, address)
            StringCodec.encode(rest, "5.3.0", True)
            return b"\0" + packed(MEMBER) + b"\1" + struct.pack("<i", 1) + packed(CLUSTER) + b"\0", rest
        if kind == CLUSTER_VIEW:
            member = MemberInfo(address, MEMBER, {}, False, MemberVersion(5, 3, 0), None, {})
            ListMultiFrameCodec.encode(rest, [member], MemberInfoCodec.encode, True)
            self.send(MEMBERS_VIEW, correlation, struct.pack("<i", 1), rest, event=True)
            return b"", b""
        if kind == BACKUP_LISTENER:
            return packed(uuid.uuid4()), b""
        if kind == PING:
            return b"", b""
        if kind == CREATE_GROUP:
            RaftGroupIdCodec.encode(rest, GROUP, True)
            return b"", rest
        if kind == THREAD_ID:
            return struct.pack("<q", next(lock.threads)), b""
        if kind == CREATE_SESSION:
            ttl = int(lock.ttl * 1000)
            return struct.pack("<qqq", lock.begin(), ttl, max(ttl // 10, 100)), b""
        (session,) = struct.unpack_from("<q", fixed) if fixed else (0,)
        if kind == HEARTBEAT:
            lock.heartbeat(session)
            return b"", b""
        if kind == CLOSE_SESSION:
            return bytes([lock.end(session)]), b""
        if kind in (LOCK, TRY_LOCK, UNLOCK):
            (thread,) = struct.unpack_from("<q", fixed, 8)
            if kind == UNLOCK:
                lock.unlock(session, thread)
                return b"\0", b""
            # Behind the id of the invocation.
            wait = struct.unpack_from("<q", fixed, 33)[0] / 1000 if kind == TRY_LOCK else float("inf")
            return struct.pack("<q", lock.lock(session, thread, wait)), b""
        print(f"unknown: {kind:#08x}", flush=True)
        raise Refused(errors._UNSUPPORTED_OPERATION, "UnsupportedOperationException")


class Member(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--ttl", type=float, default=300, help="of a session, in seconds")
    arguments = parser.parse_args()
    with Member(("127.0.0.1", 0), Client) as member:
        member.lock = FencedLock(arguments.ttl)
        print(f"port {member.server_address[1]}", flush=True)
        member.serve_forever()


if __name__ == "__main__":
    sys.exit(main())
