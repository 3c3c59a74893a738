"""Honest fakes and generated media, for tests here and in programs that use mmserve.

    FakeRunner      obeys a rule (next token = f(tokens)) and reads back every slot it is given
    FakeClient      the `Client` port without a model
    byte_tokenizer  256 bytes and a few control tokens
    scene, clip     table-top pictures and clips with questions and true answers, from a seed

Nothing here is used by mmserve itself.
"""

from mmserve.testing.byte_tokenizer import (
    BYTE_CHAT_TEMPLATE,
    BYTE_IMAGE_TOKEN_ID,
    byte_prompt_builder,
    byte_tokenizer,
)
from mmserve.testing.clips import Clip, clip
from mmserve.testing.fake_client import FakeClient, FakeTicket
from mmserve.testing.fake_runner import FakeRunner
from mmserve.testing.scenes import (
    SCENE_SCHEMA,
    TEST_SEEDS,
    TRAIN_SEEDS,
    Layout,
    Question,
    Scene,
    Thing,
    scene,
)

__all__ = [
    "BYTE_CHAT_TEMPLATE",
    "BYTE_IMAGE_TOKEN_ID",
    "SCENE_SCHEMA",
    "TEST_SEEDS",
    "TRAIN_SEEDS",
    "Clip",
    "FakeClient",
    "FakeRunner",
    "FakeTicket",
    "Layout",
    "Question",
    "Scene",
    "Thing",
    "byte_prompt_builder",
    "byte_tokenizer",
    "clip",
    "scene",
]
