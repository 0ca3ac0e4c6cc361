"""An upstream that takes a while: answers each request a given time after it has come whole.

    python3 benches/yard/upstream.py SECONDS [BYTES]

Prints its port. HTTP/1.1 with Content-Length bodies, as the load generators send them. BYTES: how
long an answer is.
"""

import asyncio
import re
import sys

DELAY = float(sys.argv[1])
BODY = b"x" * (int(sys.argv[2]) if len(sys.argv) > 2 else 5)
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(BODY) + BODY
LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)


class Connection(asyncio.Protocol):
    def connection_made(self, transport):
        self.transport = transport
        self.buffer = b""

    def data_received(self, data):
        self.buffer += data
        while (end := self.buffer.find(b"\r\n\r\n")) >= 0:
            length = LENGTH.search(self.buffer, 0, end)
            whole = end + 4 + (int(length.group(1)) if length else 0)
            if len(self.buffer) < whole:
                return
            self.buffer = self.buffer[whole:]
            loop.call_later(DELAY, self.answer)

    def answer(self):
        if not self.transport.is_closing():
            self.transport.write(ANSWER)


async def main():
    server = await loop.create_server(Connection, "127.0.0.1", 0, backlog=4096)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


loop = asyncio.new_event_loop()
loop.run_until_complete(main())
