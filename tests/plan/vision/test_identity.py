"""Digests: equal for equal inputs, different for anything else."""

from fractions import Fraction

from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from plan.vision.making import new_plane, noise, saved

from mmserve.core import BytesSource, ImagePart
from mmserve.vision.identity import content_digest, frame_options, media_digest, new_key

KEY = bytes(range(16))
_fields = st.tuples(*[st.binary(max_size=3)] * 4, st.text(max_size=3))


def digest(fields, key=KEY):
    """The identity of five fields."""
    content, options, processor, model, salt = fields
    return media_digest(
        key, content=content, options=options, processor=processor, model=model, salt=salt
    )


@given(left=_fields, right=_fields)
@settings(max_examples=200, deadline=None)
def test_no_two_lists_of_fields_collide(left, right):
    """Digests are equal exactly if all fields are, wherever bytes move between fields."""
    assert (digest(left) == digest(right)) == (left == right)


@given(pieces=st.lists(st.binary(max_size=2), min_size=4, max_size=4))
@settings(max_examples=100, deadline=None)
def test_bytes_do_not_move_between_fields(pieces):
    """The same bytes cut at other places are another identity."""
    whole = b"".join(pieces)
    moved = (whole, b"", b"", b"", "")
    assert (digest((*pieces, "")) == digest(moved)) == ((*pieces, "") == moved)


def test_digests_are_keyed():
    """Another key gives other digests, of 16 bytes."""
    fields = (b"a", b"b", b"c", b"d", "e")
    assert len(digest(fields)) == 16
    assert digest(fields) != digest(fields, new_key())
    assert content_digest(KEY, b"x") != content_digest(new_key(), b"x")


@given(left=st.fractions(), right=st.fractions(), turn=st.sampled_from(["", "t", "tx"]))
@settings(max_examples=50, deadline=None)
def test_frames_are_told_apart_by_exact_time_and_turn(left, right, turn):
    """Two times are one identity only if they are exactly equal, however close they are."""
    assert (frame_options(left, turn) == frame_options(right, turn)) == (left == right)
    assert frame_options(left, turn) != frame_options(left, turn + "y")
    near = left + Fraction(1, 10**30)
    assert frame_options(left, turn) != frame_options(near, turn)


def test_shape_is_part_of_the_identity():
    """Equal raw bytes seen as 30 x 150, 150 x 30 or grey are different pictures (O-CAC-02)."""
    raw = noise(150, 30).tobytes()
    pictures = [
        Image.frombytes("RGB", (30, 150), raw),
        Image.frombytes("RGB", (150, 30), raw),
        Image.frombytes("L", (90, 150), raw),
    ]
    plane = new_plane()
    digests = {
        plane.resolve(ImagePart(BytesSource(saved(p))), salt="", index=0).items[0].digest
        for p in pictures
    }
    plane.close()
    assert len(digests) == 3


def test_many_small_pictures_never_collide():
    """800 pictures that differ in a few bits have 800 identities (O-CAC-04)."""
    plane = new_plane()
    contents = [saved(noise(2, 2) * 0 + k % 256, compress_level=k // 256) for k in range(800)]
    digests = {
        plane.resolve(ImagePart(BytesSource(c)), salt="", index=0).items[0].digest
        for c in contents
    }
    plane.close()
    assert len(digests) == len(set(contents))


def test_salt_separates_tenants():
    """A picture under another salt is another identity; under the same salt it is one."""
    plane = new_plane()
    part = ImagePart(BytesSource(saved(noise(4, 4))))
    digests = [
        plane.resolve(part, salt=salt, index=0).items[0].digest for salt in ("a", "b", "a")
    ]
    plane.close()
    assert digests[0] == digests[2] != digests[1]
