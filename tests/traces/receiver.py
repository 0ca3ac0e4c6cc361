"""A collector: takes spans by OTLP over HTTP, decodes them with OpenTelemetry's own protobuf
definitions, and prints one JSON line for each.

    receiver.py [CERTIFICATE KEY]    with these files: over TLS

The first line has the port. From SIGUSR1 on it refuses what it gets."""

import http.server
import json
import signal
import ssl
import sys
import threading

from opentelemetry.proto.collector.trace.v1 import trace_service_pb2

refusing = threading.Event()
saying = threading.Lock()


def say(what):
    with saying:
        print(json.dumps(what), flush=True)


def value(any_value):
    kind = any_value.WhichOneof("value")
    return getattr(any_value, kind) if kind else None


def attributes(pairs):
    return {pair.key: value(pair.value) for pair in pairs}


def take(request, fields):
    for group in request.resource_spans:
        resource = attributes(group.resource.attributes)
        for scope in group.scope_spans:
            for span in scope.spans:
                say(
                    {
                        "name": span.name,
                        "kind": span.kind,
                        "trace": span.trace_id.hex(),
                        "span": span.span_id.hex(),
                        "parent": span.parent_span_id.hex(),
                        "state": span.trace_state,
                        "began": span.start_time_unix_nano,
                        "ended": span.end_time_unix_nano,
                        "status": span.status.code,
                        "attributes": attributes(span.attributes),
                        "resource": resource,
                        "fields": fields,
                    }
                )


class Http(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        answer = b""
        if refusing.is_set():
            self.send_response(400)
        elif (self.path, self.headers["Content-Type"]) != ("/v1/traces", "application/x-protobuf"):
            say({"wrong": [self.path, self.headers["Content-Type"]]})
            self.send_response(404)
        else:
            request = trace_service_pb2.ExportTraceServiceRequest.FromString(body)
            take(request, {name.lower(): text for name, text in self.headers.items()})
            answer = trace_service_pb2.ExportTraceServiceResponse().SerializeToString()
            self.send_response(200)
            self.send_header("Content-Type", "application/x-protobuf")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_):
        pass


def main():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Http)
    if certificate := sys.argv[1:]:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    signal.signal(signal.SIGUSR1, lambda *_: refusing.set())
    threading.Thread(target=server.serve_forever, daemon=True).start()
    say({"http": server.server_port})
    while True:
        signal.pause()


main()
