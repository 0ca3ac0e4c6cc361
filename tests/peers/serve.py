"""Serves what a suite is played against, on a port of the loopback: `httpbin PORT`, `echo PORT`."""

import asyncio
import sys

from aiohttp import WSMsgType, web
from cheroot.wsgi import Server


class Lingering(web.WebSocketResponse):
    """It reads a broken client to its end. To close earlier resets the connection, and whether the
    last frames pass a reset is chance, on the way through any proxy."""

    def _close_transport(self):
        pass


async def echo(request):
    socket = Lingering(max_msg_size=0)
    await socket.prepare(request)
    async for message in socket:
        if message.type == WSMsgType.TEXT:
            await socket.send_str(message.data)
        elif message.type == WSMsgType.BINARY:
            await socket.send_bytes(message.data)
    if request.transport:
        request.transport.write_eof()
    for _ in range(100):
        if request.transport:
            await asyncio.sleep(0.01)
    return socket


what, port = sys.argv[1], int(sys.argv[2])
if what == "echo":
    app = web.Application()
    app.router.add_get("/", echo)
    web.run_app(app, host="127.0.0.1", port=port, print=None)
else:
    from httpbin import app

    Server(("127.0.0.1", port), app, numthreads=8).start()
