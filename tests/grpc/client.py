"""One gRPC call: client.py ADDRESS METHOD [key=value ...]

Prints what a caller sees of it as JSON: status, details, metadata, messages.

  token=N, meta.NAME=VALUE   what is sent along
  say=TEXT, count=N          the request, and how many of them where the call takes several
  turns=1                    the next message is sent only when the answer to the one before is there
  hold=1                     after the last message the stream is left open
  cancel=S                   given up after so many seconds
"""

import json
import queue
import sys
import threading

import grpc

address, method, *pairs = sys.argv[1:]
options = dict(pair.split("=", 1) for pair in pairs)
channel = grpc.insecure_channel(address, options=(("grpc.enable_retries", 0),))
count = int(options.get("count", 1))
text = options.get("say", "hi").encode()
metadata = [(key[5:], value) for key, value in options.items() if key.startswith("meta.")]
metadata.append(("x-bin-bin", b"\x00\xff\x80"))
if "token" in options:
    metadata.append(("x-fencing-token", options["token"]))
with_all = {"metadata": metadata, "timeout": 60}
path = "/test.Ledger/" + method
received = []
answers = queue.Queue()


def plain(metadata):
    return [[key, value.hex() if isinstance(value, bytes) else value] for key, value in metadata or ()]


def turns():
    """Messages that wait for the answers to those before."""
    for n in range(count):
        if n or method == "First":
            answers.get(timeout=50)
        yield text + b"%d" % n
    if "hold" in options:
        threading.Event().wait(50)


messages = turns() if "turns" in options else iter([text] * count)
if method == "Up":
    running = channel.stream_unary(path).future(messages, **with_all)
elif method in ("Both", "First"):
    running = channel.stream_stream(path)(messages, **with_all)
elif method in ("Down", "Half"):
    running = channel.unary_stream(path)(text, **with_all)
else:
    running = channel.unary_unary(path).future(text, **with_all)
if "cancel" in options:
    threading.Timer(float(options["cancel"]), running.cancel).start()
try:
    for message in running if method in ("Both", "First", "Down", "Half") else [running.result()]:
        received.append(message)
        answers.put(message)
except (grpc.RpcError, grpc.FutureCancelledError):
    pass
code = running.code()
print(
    json.dumps(
        {
            "code": code.name,
            "details": running.details(),
            "initial": plain(running.initial_metadata()) if code is grpc.StatusCode.OK else [],
            "trailing": plain(running.trailing_metadata()),
            "messages": [message.decode() for message in received],
        }
    )
)
