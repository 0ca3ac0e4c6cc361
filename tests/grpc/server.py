"""A gRPC service that knows nothing of fencing: bytes in, bytes out, no .proto.

Prints `port N` once it listens, and one line of JSON for each call that arrives.
"""

import json
import threading
from concurrent import futures

import grpc

lock = threading.Lock()


def say(**what):
    with lock:
        print(json.dumps(what), flush=True)


def arrived(method, context):
    metadata = {key: value.hex() if isinstance(value, bytes) else value for key, value in context.invocation_metadata()}
    say(
        arrived=method,
        token=metadata.get("x-fencing-token"),
        resource=metadata.get("x-fencing-resource"),
        key=metadata.get("idempotency-key"),
        metadata=metadata,
        remaining=context.time_remaining(),
    )
    context.send_initial_metadata((("x-initial", "one"), ("x-initial", "two")))
    context.set_trailing_metadata((("x-trailing", "end"), ("x-trailing-bin", b"\x00\xff\x80")))


def unary(request, context):
    arrived("Unary", context)
    return b"re:" + request


def up(requests, context):
    arrived("Up", context)
    sizes = [len(request) for request in requests]
    return b"%d messages, %d bytes" % (len(sizes), sum(sizes))


def down(request, context):
    arrived("Down", context)
    for n in range(int(request)):
        yield b"%d" % n


def both(requests, context):
    arrived("Both", context)
    for request in requests:
        yield b"re:" + request


def first(requests, context):
    """The server speaks first."""
    arrived("First", context)
    yield b"hello"
    for request in requests:
        yield b"re:" + request


def fail(request, context):
    arrived("Fail", context)
    code, _, details = request.decode().partition(":")
    context.abort(getattr(grpc.StatusCode, code), details)


def half(request, context):
    """Two messages, and then an error."""
    arrived("Half", context)
    yield b"one"
    yield b"two"
    context.abort(grpc.StatusCode.DATA_LOSS, "no more of it")


def slow(request, context):
    arrived("Slow", context)
    gone = threading.Event()
    context.add_callback(gone.set)
    gone.wait(float(request))
    say(slow="left" if not context.is_active() else "done")
    return b"late"


class Handler(grpc.GenericRpcHandler):
    kinds = {
        "Unary": (grpc.unary_unary_rpc_method_handler, unary),
        "Up": (grpc.stream_unary_rpc_method_handler, up),
        "Down": (grpc.unary_stream_rpc_method_handler, down),
        "Both": (grpc.stream_stream_rpc_method_handler, both),
        "First": (grpc.stream_stream_rpc_method_handler, first),
        "Fail": (grpc.unary_unary_rpc_method_handler, fail),
        "Half": (grpc.unary_stream_rpc_method_handler, half),
        "Slow": (grpc.unary_unary_rpc_method_handler, slow),
    }

    def service(self, details):
        kind = self.kinds.get(details.method.rpartition("/")[2])
        return kind and kind[0](kind[1])


server = grpc.server(futures.ThreadPoolExecutor(max_workers=64))
server.add_generic_rpc_handlers((Handler(),))
port = server.add_insecure_port("127.0.0.1:0")
server.start()
print("port", port, flush=True)
server.wait_for_termination()
