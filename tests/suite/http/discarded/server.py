"""A WSGI application under cheroot or waitress. It prints each request that it executes."""

import sys


def app(environ, start_response):
    environ["wsgi.input"].read()
    print("did", environ["REQUEST_METHOD"], environ["PATH_INFO"], flush=True)
    start_response("200 OK", [("Content-Length", "0")])
    return [b""]


name, port = sys.argv[1], int(sys.argv[2])
if name == "cheroot":
    from cheroot.wsgi import Server

    Server(("127.0.0.1", port), app).start()
else:
    from waitress import serve

    serve(app, host="127.0.0.1", port=port)
