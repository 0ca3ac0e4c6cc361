"""One gRPC call: client.py ADDRESS METHOD [key=value ...]

Prints what a caller sees of it as JSON: status, details, metadata, messages.

  token=N, meta.NAME=VALUE   what is sent along
  say=TEXT, count=N          the request, and how many of them where the call takes several
  turns=1                    the next message is sent only when the answer to the one before is there
  hold=1                     after the last message the stream is left open
  deadline=S, cancel=S       given up after so many seconds
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
deadline = float(options.get("deadline", 60))

path = "/test.Ledger/" + method
received = []


def plain(metadata):
    return [[key, value.hex() if isinstance(value, bytes) else value] for key, value in metadata or ()]


def turns(answers):
    """Messages that wait for the answers to those before."""
    for n in range(count):
        if n or method == "First":
            answers.get(timeout=50)
        yield text + b"%d" % n
    if "hold" in options:
        threading.Event().wait(50)


def call():
    given = {"metadata": metadata, "timeout": deadline}
    if method in ("Up", "Both", "First"):
        answers = queue.Queue()
        messages = turns(answers) if "turns" in options else iter([text] * count)
        kind = channel.stream_unary if method == "Up" else channel.stream_stream
        if method == "Up":
            return kind(path).future(messages, **given), None
        return kind(path)(messages, **given), answers
    if method in ("Down", "Half"):
        return channel.unary_stream(path)(text, **given), None
    return channel.unary_unary(path).future(text, **given), None


def one():
    received.clear()
    running, answers = call()
    if "cancel" in options:
        threading.Timer(float(options["cancel"]), running.cancel).start()
    try:
        if hasattr(running, "result") and method not in ("Down", "Half", "Both", "First"):
            received.append(running.result())
        else:
            for message in running:
                received.append(message)
                if answers is not None:
                    answers.put(message)
    except grpc.RpcError:
        pass
    except grpc.FutureCancelledError:
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
        ),
        flush=True,
    )


one()
