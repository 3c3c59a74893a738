"""Values come out of the codec as they went in, and nothing else ever does."""

from __future__ import annotations

import dataclasses
import types
import typing
from typing import Any, Literal

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmserve import core
from mmserve.core import (
    BytesSource,
    EngineConfig,
    Finish,
    ImagePart,
    MediaLook,
    MmserveError,
    ModelInfo,
    NotFound,
    Output,
    PromptReport,
    Request,
    SamplingParams,
    TextPart,
    Usage,
    WeightMismatch,
)
from mmserve.engine.remote.codec import LARGE_BYTES, Blobs, decode, encode
from mmserve.engine.remote.messages import (
    MESSAGES,
    Failed,
    Message,
    NotOpened,
    Open,
    Submit,
    Told,
)

ERRORS = [
    kind
    for name in core.__all__
    if isinstance(kind := getattr(core, name), type) and issubclass(kind, MmserveError)
]


def there_and_back(message: Message) -> Message:
    """What the other side gets."""
    blobs = Blobs()
    text = encode(message, blobs)
    content = b"".join(blobs.contents)
    return decode(text, lambda place, num_bytes: content[place : place + num_bytes])


def of_type(kind: Any) -> st.SearchStrategy[Any]:  # noqa: PLR0911
    """Any value that an annotation allows."""
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return st.one_of([of_type(arg) for arg in args if not is_error(arg)])
    if origin is Literal:
        return st.sampled_from(args)
    if origin is tuple and args[-1] is Ellipsis:
        return st.lists(of_type(args[0]), max_size=3).map(tuple)
    if origin is tuple:
        return st.tuples(*map(of_type, args))
    if dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        return st.builds(kind, **{name: of_type(hint) for name, hint in hints.items()})
    return {
        str: st.text(st.characters(exclude_categories=()), max_size=20),
        bytes: st.binary(max_size=20),
        int: st.integers(-(2**80), 2**80),
        float: st.floats(allow_nan=False),
        bool: st.booleans(),
        type(None): st.none(),
    }[kind]


def is_error(kind: Any) -> bool:
    """Whether an annotation names an exception, which has a test of its own."""
    return isinstance(kind, type) and issubclass(kind, Exception)


@given(of_type(Request))
def test_requests_arrive_as_they_were_sent(request: Request):
    """Every part, turn, source and parameter, whatever its values, has its type and value."""
    assert there_and_back(Submit(1, request)) == Submit(1, request)


@given(of_type(Output), of_type(PromptReport), of_type(ModelInfo), of_type(MediaLook))
def test_answers_arrive_as_they_were_sent(output: Any, report: Any, model: Any, look: Any):
    """Outputs, reports, facts of a model and looks are equal on the other side."""
    for value in (output, report, model, look):
        assert there_and_back(Told(7, value)) == Told(7, value)


@given(st.sampled_from(ERRORS), st.text(), st.none() | st.text(), st.integers(), st.text())
def test_errors_keep_class_message_hint_and_fields(kind, message, hint, number, text):
    """Every class of the tree is itself on the other side."""
    error = kind(message, hint=hint, num=number, field=text, both=(number, text))
    got = there_and_back(Failed(1, error))
    assert isinstance(got, Failed)
    assert (type(got.error), got.error.message, got.error.hint) == (kind, message, hint)
    assert got.error.fields == error.fields


def test_an_error_inside_an_output_arrives():
    """The finish of a failed sequence tells why."""
    finish = Finish("error", error=NotFound("no such file", what="file"))
    got = there_and_back(Told(3, Output("r", 0, "", (), Usage(2), finish=finish)))
    assert isinstance(got, Told)
    assert got.value.finish is not None
    assert str(got.value.finish.error) == "no such file"


def test_errors_arrive_whatever_they_hold():
    """A field that does not travel arrives as its words, a class from elsewhere as its base."""

    class Special(WeightMismatch):
        pass

    got = there_and_back(Failed(1, Special("x", got=object, name="w")))
    assert isinstance(got, Failed)
    assert type(got.error) is WeightMismatch
    assert got.error.fields == {"got": str(object), "name": "w"}


def test_errors_of_the_system_keep_number_words_and_path():
    """A missing file is a missing file on the other side."""
    got = there_and_back(NotOpened(FileNotFoundError(2, "No such file", "/models/x")))
    assert isinstance(got, NotOpened)
    assert isinstance(got.error, FileNotFoundError)
    assert (got.error.strerror, got.error.filename) == ("No such file", "/models/x")


def test_settings_arrive_with_their_rooms():
    """An engine's settings are equal on the other side, nested ones included."""
    sched = core.SchedConfig(max_running=3, client_weights=(("a", 2.0),))
    config = EngineConfig(model="m", sched=sched, media=core.MediaConfig(workers=1))
    assert there_and_back(Open(config, 1.0)) == Open(config, 1.0)


def test_large_bytes_stay_out_of_the_text():
    """Pictures of a quarter of a MiB and more travel beside the message, smaller ones in it."""
    parts = tuple(ImagePart(BytesSource(bytes([k]) * (LARGE_BYTES - 1 + k))) for k in range(3))
    blobs = Blobs()
    text = encode(Submit(1, Request(request_id="r", parts=parts)), blobs)
    assert [len(content) for content in blobs.contents] == [LARGE_BYTES, LARGE_BYTES + 1]
    assert LARGE_BYTES < len(text) < LARGE_BYTES + 1000
    got = there_and_back(Submit(1, Request(request_id="r", parts=parts)))
    assert got == Submit(1, Request(request_id="r", parts=parts))


def test_numbers_of_numpy_become_plain():
    """What a caller took from an array arrives as the number it is."""
    sampling = SamplingParams(seed=np.int64(3), temperature=np.float32(0.5))  # type: ignore[arg-type]
    got = there_and_back(Submit(1, Request(request_id="r", parts=(), sampling=sampling)))
    assert isinstance(got, Submit)
    assert type(got.request.sampling.seed) is int
    assert got.request.sampling == SamplingParams(seed=3, temperature=0.5)


def test_what_does_not_travel_is_said_and_leaves_nothing():
    """A strange value is a TypeError, and bytes taken in for it are let go."""
    parts: Any = (ImagePart(BytesSource(bytes(LARGE_BYTES))), object())
    blobs = Blobs()
    with pytest.raises(TypeError, match="object does not travel"):
        encode(Submit(1, Request(request_id="r", parts=parts)), blobs)
    assert (blobs.contents, blobs.num_bytes) == ([], 0)


@pytest.mark.parametrize(
    "plain",
    [
        {"$": "Popen", "args": ["true"]},
        {"$": "os.system"},
        {"$": ["Request"]},
        {"a": 1},
        {"$": "!", "kind": "KeyError", "message": "", "hint": None, "fields": []},
        {"$": "TextPart", "text": "x"},
        {"$": "Beat"},
        {"$": "Beat", "loop_age_s": 0.0, "other": 1},
        5,
    ],
)
def test_nothing_but_known_messages_is_built(plain):
    """Unknown classes, values that are no message and missing fields are refused."""
    with pytest.raises((ValueError, TypeError)):
        decode(msgspec.msgpack.encode(plain), lambda place, num_bytes: b"")


def test_every_message_is_frozen_and_known_by_one_name():
    """Messages are values, and no name stands for two classes."""
    names = [kind.__name__ for kind in MESSAGES]
    assert len(set(names)) == len(names)
    assert not set(names) & set(core.__all__)
    assert all(kind.__dataclass_params__.frozen for kind in MESSAGES)


def test_text_keeps_half_a_surrogate_pair():
    """What JSON lets through as half a character arrives as it was, to be refused there."""
    request = Request(request_id="r", parts=(TextPart("\ud800"),))
    assert there_and_back(Submit(1, request)) == Submit(1, request)
