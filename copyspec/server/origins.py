"""Which web pages may use the server: browsers reach a server on this machine from any page that they show.

A page may send requests to other addresses, with its own in the header `Origin`, and read the answers if the server
allows it (CORS). Or it may let its own name lead to this machine (DNS rebinding); then `Host` has that name.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from urllib.parse import urlsplit

from copyspec.checks import brief
from copyspec.server.asgi import Scope, header
from copyspec.server.settings import ANY_ORIGIN, ServerSettings

_LOCAL = re.compile(r"localhost|.*\.localhost|.*\.internal")  # names that nobody can register
_HOST = re.compile(r"(?:\[([^\[\]]*)\]|([^\[\]:]*))(?::\d*)?")
MAX_NAMED = 80  # characters of a name in a message
_PREFLIGHT_SECONDS = "600"  # that a browser may remember an answer

Headers = dict[str, str]


class Origins:
    """The rules of one server. One with a key answers everybody who sends it, which no other page can."""

    def __init__(self, settings: ServerSettings) -> None:
        self._allowed = {origin.lower() for origin in settings.allow_origins}
        self._names = {_name(urlsplit(origin).netloc) for origin in self._allowed} | {socket.gethostname().lower()}
        self._has_key = settings.api_key is not None

    def refusal(self, scope: Scope) -> str | None:
        """Why a request may not be answered; None if it may."""
        origin = _text(scope, b"origin")
        if (self._is_foreign(scope) and not self._has_key) or (is_preflight(scope) and not self._allows(origin)):
            return (
                f"a page of {brief(origin)} may not use this server: allow it with --allow-origin {origin[:MAX_NAMED]}"
            )
        if self._has_key or ANY_ORIGIN in self._allowed or self._is_own_name(scope):
            return None
        host = _text(scope, b"host")
        way = f"ask it as localhost, or allow it with --allow-origin http://{host[:MAX_NAMED]}"
        return f"this server is not called {brief(host)}: {way}"

    def headers(self, scope: Scope) -> Headers:
        """The headers that let a page read the answer to its request; none if it is not allowed to."""
        origin = _text(scope, b"origin")
        if not origin or not self._allows(origin):
            return {}
        headers = {"access-control-allow-origin": origin, "vary": "Origin"}
        if is_preflight(scope):
            headers |= {
                "access-control-allow-methods": "GET, HEAD, POST",
                "access-control-allow-headers": _text(scope, b"access-control-request-headers") or "*",
                "access-control-max-age": _PREFLIGHT_SECONDS,
            }
            if header(scope, b"access-control-request-private-network") is not None:
                headers["access-control-allow-private-network"] = "true"
        return headers

    def _allows(self, origin: str) -> bool:
        return ANY_ORIGIN in self._allowed or origin.lower() in self._allowed

    def _is_foreign(self, scope: Scope) -> bool:
        origin = _text(scope, b"origin").lower()
        own = {f"{scheme}://{_text(scope, b'host').lower()}" for scheme in ("http", "https")}
        return bool(origin) and origin not in own and not self._allows(origin)

    def _is_own_name(self, scope: Scope) -> bool:
        """Whether the name in `Host` leads to this machine whoever asks. No page can have an address as its name, and
        on addresses that other machines reach, any name may."""
        host = _name(_text(scope, b"host"))
        local = str((scope.get("server") or ("",))[0]).lower()
        address = _address(local)
        address = getattr(address, "ipv4_mapped", None) or address  # of a socket that takes IPv4 as IPv6
        is_reached = address is not None and not address.is_loopback
        known = host in ("", local) or host in self._names or _LOCAL.fullmatch(host) is not None
        return is_reached or known or _address(host) is not None


def is_preflight(scope: Scope) -> bool:
    """Whether a browser asks if a page may send a request."""
    return scope.get("method") == "OPTIONS" and header(scope, b"access-control-request-method") is not None


def _text(scope: Scope, name: bytes) -> str:
    return (header(scope, name) or b"").decode("latin-1").strip()


def _name(host: str) -> str:
    """A host without its port, in lower case."""
    parts = _HOST.fullmatch(host)
    return (host if parts is None else parts[1] or parts[2]).lower().removesuffix(".")


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None
