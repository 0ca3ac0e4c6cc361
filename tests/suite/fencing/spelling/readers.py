# What Python acts on: lines of hex in (a request target), lines of JSON-ish hex out, one column per
# reading.
import posixpath
import sys
from http.server import SimpleHTTPRequestHandler
from urllib.parse import parse_qs, unquote, unquote_to_bytes, urlparse, urlsplit


class Files(SimpleHTTPRequestHandler):
    def __init__(self):
        self.directory = "/srv"


def path(raw):
    return raw.split("?", 1)[0].split("#", 1)[0]


norm = posixpath.normpath
files = Files()
READINGS = [
    lambda raw: unquote(path(raw), errors="surrogateescape"),
    lambda raw: unquote(urlsplit(raw).path, errors="surrogateescape"),
    lambda raw: unquote(urlparse(raw).path, errors="surrogateescape"),
    lambda raw: norm(unquote(urlsplit(raw).path, errors="surrogateescape")),
    lambda raw: unquote(norm(urlsplit(raw).path), errors="surrogateescape"),
    # As WSGI hands a path on.
    lambda raw: unquote(path(raw), "iso-8859-1"),
    lambda raw: unquote_to_bytes(path(raw)).decode("iso-8859-1"),
    lambda raw: files.translate_path(raw),
    lambda raw: parse_qs(urlsplit(raw).query, keep_blank_values=True)["q"][0],
    lambda raw: parse_qs(urlsplit(raw).query, keep_blank_values=True)["q"][-1],
]

for line in sys.stdin:
    raw = bytes.fromhex(line.strip()).decode("utf-8", "surrogateescape")
    columns = []
    for reading in READINGS:
        try:
            thing = reading(raw)
            columns.append("=" + thing.encode("utf-8", "surrogatepass").hex())
        except Exception:
            columns.append("-")
    print(" ".join(columns))
