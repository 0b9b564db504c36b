"""Who may see a page: those who name the token, in either form, and browsers that asked for this machine by name."""

import base64

import pytest
from pydantic import SecretStr

from worker.web.access import is_allowed, is_this_machine

TOKEN = SecretStr("s3cret:with:colons")


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


@pytest.mark.parametrize(
    "authorization",
    [
        "Bearer s3cret:with:colons",
        "bearer s3cret:with:colons",
        f"Basic {encoded('anyone:s3cret:with:colons')}",
        f"basic {encoded(':s3cret:with:colons')}",
    ],
)
def test_a_header_that_names_the_token_is_let_in(authorization: str) -> None:
    assert is_allowed(authorization, TOKEN)


@pytest.mark.parametrize(
    "authorization",
    [
        "",
        "Bearer",
        "Bearer s3cret",
        "Bearer s3cret:with:colonsX",
        "s3cret:with:colons",
        "Basic s3cret:with:colons",
        "Basic %%%",
        "Basic é",
        f"Basic {encoded('s3cret:with:colons')}",
        f"Basic {encoded('anyone:')}",
        f"Digest {encoded('anyone:s3cret:with:colons')}",
    ],
)
def test_any_other_header_is_not(authorization: str) -> None:
    assert not is_allowed(authorization, TOKEN)


def test_without_a_token_nothing_has_to_be_named() -> None:
    assert is_allowed("", None)


@pytest.mark.parametrize("host", ["127.0.0.1:6066", "127.0.0.1", "localhost:1", "LOCALHOST", "[::1]:6066", "[::1]"])
def test_a_loopback_name_is_this_machine(host: str) -> None:
    assert is_this_machine(host)


@pytest.mark.parametrize("host", ["", "evil.example:6066", "127.0.0.1.evil.example", "[::2]:6066", "10.0.0.1", "[::1"])
def test_a_name_that_was_made_to_resolve_to_this_machine_is_not(host: str) -> None:
    assert not is_this_machine(host)
