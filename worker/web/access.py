"""Who may see a page: whoever names the token and, where there is none, a browser that asked for this machine by name.

A browser names the token as the password of HTTP Basic (any user name): nothing is kept here and no cookie is made, so
there is no session to steal or to forge, and the pages change nothing. Programs name it as a bearer token.
"""

import base64
import binascii
import hmac
from typing import Final

from pydantic import SecretStr

from worker.settings import LOOPBACK_HOSTS

CHALLENGE: Final = 'Basic realm="trace-projector", charset="UTF-8"'


def is_allowed(authorization: str, token: SecretStr | None) -> bool:
    """Whether an Authorization header names the token, if there is one to be named."""
    if token is None:
        return True
    scheme, _, given = authorization.partition(" ")
    expected = token.get_secret_value().encode("utf-8", "surrogateescape")
    return hmac.compare_digest(_named(scheme.lower(), given.strip()), expected)


def _named(scheme: str, given: str) -> bytes:
    """Give the token that a header names; empty, which no token is, for any other header."""
    if scheme == "bearer":
        return given.encode("utf-8", "surrogateescape")
    if scheme != "basic":
        return b""
    try:
        return base64.b64decode(given, validate=True).partition(b":")[2]
    except (binascii.Error, ValueError):
        return b""


def is_this_machine(host: str) -> bool:
    """Whether a Host header names this machine.

    Without a token that is all that keeps a page of some other site from reading these by a name that it lets resolve
    to a loopback address.
    """
    name = host.rpartition("]")[0].removeprefix("[") if host.startswith("[") else host.partition(":")[0]
    return name.lower() in LOOPBACK_HOSTS
