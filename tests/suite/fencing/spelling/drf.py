# What Django REST framework acts on: lines of hex in (a request target), lines of hex out, a column
# per way to write its routes.
import sys
from urllib.parse import unquote_to_bytes

import django
from django.conf import settings

settings.configure(ALLOWED_HOSTS=["*"], INSTALLED_APPS=[], USE_TZ=False)
django.setup()

from django.core.handlers.wsgi import get_path_info
from django.urls import Resolver404, URLResolver, path
from django.urls.resolvers import RegexPattern
from rest_framework.routers import DefaultRouter
from rest_framework.urlpatterns import format_suffix_patterns
from rest_framework.viewsets import ViewSet


class Things(ViewSet):
    def retrieve(self, request, pk=None, format=None):
        pass


router = DefaultRouter()
router.include_root_view = False
router.register("things", Things, basename="thing")
view = Things.as_view({"get": "retrieve"})
WAYS = [
    URLResolver(RegexPattern(r"^/"), urls)
    for urls in (format_suffix_patterns([path("things/<slug:pk>", view)]), router.urls)
]

for line in sys.stdin:
    raw = bytes.fromhex(line.strip()).split(b"?", 1)[0].split(b"#", 1)[0]
    # As WSGI hands a path on.
    info = get_path_info({"PATH_INFO": unquote_to_bytes(raw).decode("iso-8859-1")})
    columns = []
    for way in WAYS:
        try:
            columns.append("=" + way.resolve(info).kwargs["pk"].encode("utf-8").hex())
        except (Resolver404, UnicodeError):
            columns.append("-")
    print(" ".join(columns))
