"""The container's health check: exit code 0 if HEALTHCHECK_URL answers with 200."""

import os
import sys
import urllib.error
import urllib.request

_TIMEOUT_S = 4.0

try:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # proxies cannot reach this container
    opener.open(os.environ["HEALTHCHECK_URL"], timeout=_TIMEOUT_S).close()
except urllib.error.HTTPError as error:
    sys.exit(f"{error.url}: {error.code} {error.read(300).decode(errors='replace').strip()}")
except OSError as error:
    sys.exit(f"{os.environ['HEALTHCHECK_URL']}: {error}")
