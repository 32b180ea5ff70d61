"""Logs an outage of the brokers: one line when it begins and one when it ends."""

import time

import structlog

_GRACE_S = 1.0  # shorter interruptions are not logged

log = structlog.get_logger()


class OutageLog:
    """The outages that one client sees."""

    def __init__(self, bootstrap_servers: str) -> None:
        self._servers = bootstrap_servers
        self._away_since: float | None = None
        self._logged = False

    def update(self, connected: bool) -> None:
        """To be called again and again."""
        now = time.monotonic()
        if connected:
            if self._logged and self._away_since is not None:
                log.info("broker is back", bootstrap_servers=self._servers, away_s=round(now - self._away_since, 1))
            self._away_since, self._logged = None, False
        elif self._away_since is None:
            self._away_since = now
        elif not self._logged and now - self._away_since > _GRACE_S:
            log.warning("broker unreachable, waiting", bootstrap_servers=self._servers)
            self._logged = True
