"""Every error of the house has a status and a bounded JSON form."""

from __future__ import annotations

import pytest
from starlette.exceptions import HTTPException

from mmserve import core
from mmserve.core import BadRequest, Busy, EngineDown, MmserveError, RunnerFailed
from mmserve.server.errors import STATUS, error_object, error_response, status_of

TREE = [
    kind
    for name in core.__all__
    if isinstance(kind := getattr(core, name), type) and issubclass(kind, MmserveError)
]


@pytest.mark.parametrize("kind", TREE)
def test_every_class_has_a_status(kind: type[MmserveError]) -> None:
    """The table names each class of the tree itself, with a status that means failure."""
    assert 400 <= STATUS[kind] < 600


def test_a_class_without_a_status_takes_its_parents() -> None:
    """The nearest parent in the table decides."""

    class Special(RunnerFailed):
        pass

    assert status_of(Special("x")) == STATUS[RunnerFailed]


def test_only_refusals_are_the_callers_fault() -> None:
    """All classes under RequestRefused are 400, all under Broken and ModelRefused are 500."""
    for kind in TREE:
        if issubclass(kind, core.RequestRefused):
            assert STATUS[kind] == 400
        if issubclass(kind, core.Broken | core.ModelRefused):
            assert STATUS[kind] == 500


def test_strangers_say_nothing() -> None:
    """An exception that is not ours is a 500 that repeats neither its name nor its words."""
    words = str(error_object(KeyError("secret")))
    assert "secret" not in words
    assert "KeyError" not in words
    assert status_of(KeyError("secret")) == 500


def test_messages_are_bounded() -> None:
    """At most 300 characters, no unbroken run of 100, no query string."""
    error = BadRequest(
        f"bad {'A' * 5000} at https://h/x?token=abc123 {'word ' * 100}", field="f"
    )
    body = error_object(error)["error"]
    assert len(body["message"]) == 300
    assert "A" * 100 not in body["message"]
    assert "abc123" not in body["message"]
    assert body["param"] == "f"


def test_hints_are_told() -> None:
    """The way out is part of the message."""
    message = error_object(BadRequest("no", hint="do this"))["error"]["message"]
    assert message == "no. hint: do this"


def test_busy_says_when_to_come_back() -> None:
    """`Retry-After` is there in whole seconds, at least one."""
    assert error_response(Busy("full", retry_after_s=2.6)).headers["Retry-After"] == "3"
    assert error_response(Busy("full")).headers["Retry-After"] == "1"


def test_unknown_routes_have_the_same_form() -> None:
    """404 and 405 say what is wrong in our words."""
    body = error_object(HTTPException(404))["error"]
    assert (body["type"], body["code"]) == ("not_found_error", "not_found")
    assert error_object(HTTPException(405))["error"]["code"] == "method_not_allowed"


def test_a_missing_engine_says_when_to_come_back() -> None:
    """A request without an engine is a 503 of its own code, to be sent again."""
    response = error_response(EngineDown("the engine has stopped", retry_after_s=3.2))
    assert (response.status_code, response.headers["Retry-After"]) == (503, "3")
    assert error_object(EngineDown("gone"))["error"]["code"] == "engine_down"
