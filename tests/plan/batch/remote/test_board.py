"""Which server a group goes to, and what happens to groups of one that is lost."""

from collections import Counter

import pytest

from mmserve.batch.remote.affinity import media_key, ranked
from mmserve.batch.remote.board import Board
from mmserve.core import (
    BackendFailed,
    ImagePart,
    PathSource,
    Request,
    TextPart,
    Turn,
    UrlSource,
    VideoPart,
)

URLS = ("http://a:1", "http://b:1", "http://c:1")


def key_of(place: str, question: str = "what?", **sampling: int) -> bytes:
    """The key of a question about a clip."""
    parts = (Turn("user", (VideoPart(PathSource(place), **sampling), TextPart(question))),)
    return media_key(Request(request_id="r", parts=parts))


def test_questions_about_one_clip_have_one_key():
    """Question and sampling do not count, the file does."""
    assert key_of("a.mp4", "what?") == key_of("a.mp4", "who?", num_frames=4)
    assert key_of("a.mp4") != key_of("b.mp4")


def test_pictures_count_in_their_order():
    """Two pictures swapped are another group; the border between two names counts."""

    def key(*places: str) -> bytes:
        pictures = tuple(ImagePart(UrlSource(place)) for place in places)
        return media_key(Request(request_id="r", parts=(Turn("user", pictures),)))

    assert len({key("a", "b"), key("b", "a"), key("ab"), key("a")}) == 4


def test_a_lost_server_moves_only_its_own_groups():
    """The others stay where they were, and its groups spread over all that are left."""
    keys = [key_of(f"{n}.mp4") for n in range(300)]
    before = {key: ranked(key, URLS)[0] for key in keys}
    after = {key: ranked(key, URLS[1:])[0] for key in keys}
    assert all(after[key] == url for key, url in before.items() if url != URLS[0])
    moved = Counter(after[key] for key, url in before.items() if url == URLS[0])
    assert min(moved[url] for url in URLS[1:]) > 30


def test_no_server_gets_much_more_than_its_share():
    """With all calls under way each server has at most 1.25 shares, and groups are whole."""
    board = Board(URLS, 30)
    for n in range(30):
        board.take(key_of(f"{n}.mp4"))
    assert max(count.under_way for count in board.counts()) <= 13


def test_a_group_is_never_split():
    """The bound holds for a group's first question; all others follow it."""
    board = Board(URLS, 4)
    assert len({board.take(key_of("a.mp4")) for _ in range(20)}) == 1


def test_without_a_server_the_reasons_are_told():
    """All are out: one error that names each reason and the way out."""
    board = Board(URLS[:2], 4)
    for url in URLS[:2]:
        board.take_out(url, f"cannot reach {url}: refused")
    with pytest.raises(BackendFailed, match=r"no server answers, of 2: .*a:1.*b:1"):
        board.take(b"k")
    board.take_in(URLS[1])
    assert board.take(b"k") == URLS[1]


def test_what_each_server_did_is_counted():
    """Answered, refused and moved questions add up to those taken."""
    board = Board(URLS[:1], 4)
    for end in (board.end_answered, board.end_answered, board.end_refused, board.end_moved):
        end(board.take(b"k"))
    count = board.counts()[0]
    assert (count.answered, count.refused, count.moved, count.under_way) == (2, 1, 1, 0)
