"""A slice of the fuzzing of `benchmarks.media_fuzz`, and that it would see a broken promise."""

import json
from random import Random

import numpy as np
import pytest

from benchmarks import media_fuzz
from benchmarks.media_fuzz import Case, Fuzzer, RawProcessor, cases, fuzz, main
from benchmarks.media_mutations import MUTATIONS, mutated
from benchmarks.media_seeds import Seed, clip_seeds, picture_seeds
from mmserve.core import MediaConfig, MediaRefused

SOUND = picture_seeds()[0].content


def test_harmed_files_break_no_promise():
    """Some 300 harmed pictures and clips end as served or refused, in time and in memory."""
    record = fuzz(260, 60, seed=3)
    summary = record.summary
    assert summary["broken_promises"] == 0
    assert (summary["pictures"], summary["clips"]) == (260, 60)
    for kind in ("pictures", "clips"):
        assert summary[f"{kind}_served"] > 0
        assert summary[f"{kind}_undecodable"] > 0
        assert summary[f"{kind}_other"] == 0


def test_every_seed_is_sound():
    """What is harmed can be served before it is harmed."""
    fuzzer = Fuzzer(MediaConfig())
    seeds = [("picture", seed) for seed in picture_seeds()]
    seeds += [("clip", seed) for seed in clip_seeds()]
    for number, (kind, seed) in enumerate(seeds):
        fuzzer.run(Case(number, kind, seed.name, "none", seed.content))
    fuzzer.close()
    assert {key: tally.outcomes["served"] for key, tally in fuzzer.tallies.items()} == {
        (kind, seed.name): 1 for kind, seed in seeds
    }


@pytest.mark.parametrize("name", list(MUTATIONS))
def test_each_harm_follows_from_chance_alone(name):
    """A way to harm gives the same bytes for the same generator, and other bytes in the end."""
    others = [seed.content for seed in picture_seeds()[:3]]
    made = [MUTATIONS[name](SOUND, others, Random(seed)) for seed in range(20)]
    assert made == [MUTATIONS[name](SOUND, others, Random(seed)) for seed in range(20)]
    assert any(content != SOUND for content in made)


def test_cases_follow_from_seed_and_number():
    """The case of a number does not depend on how many there are."""
    seeds = [Seed("a", SOUND), Seed("b", b"\x89PNG\r\n\x1a\n" + bytes(50))]
    few, many = cases("picture", seeds, 3, 1), cases("picture", seeds, 9, 1)
    assert list(few) == list(many)[:3]
    assert mutated(SOUND, [SOUND], Random(1)) == mutated(SOUND, [SOUND], Random(1))


class WrongSize(RawProcessor):
    """Gives other pixels than the file has."""

    def inputs(self, frames, recipe):
        """One pixel."""
        return {"pixels": np.zeros((1, 1, 3), np.uint8)}


class Failing(RawProcessor):
    """Cannot process anything."""

    def inputs(self, frames, recipe):
        """Fail."""
        raise RuntimeError("no")


@pytest.mark.parametrize(
    ("processor", "words"), [(WrongSize, "has pixels"), (Failing, "ended as Broken")]
)
def test_broken_promises_are_seen(processor, words, monkeypatch, tmp_path):
    """Wrong pixels and errors of ours are told by case, and the file is kept."""
    monkeypatch.setattr(media_fuzz, "RawProcessor", processor)
    fuzzer = Fuzzer(MediaConfig(), tmp_path)
    fuzzer.run(Case(7, "picture", "jpeg", "none", SOUND))
    fuzzer.close()
    (broken,) = fuzzer.tallies["picture", "jpeg"].broken
    assert broken.startswith("picture 7 (jpeg, none)")
    assert words in broken
    assert (tmp_path / "picture-7.bin").read_bytes() == SOUND


@pytest.mark.parametrize(
    "refusal",
    [
        MediaRefused("image 2 is bad", reason="undecodable"),
        MediaRefused("image 1 is bad", reason="because"),
        MediaRefused("image 1 is\nbad", reason="undecodable"),
        MediaRefused("image 1 " + "x" * 500, reason="undecodable"),
    ],
)
def test_unclear_refusals_are_seen(refusal):
    """A refusal of another part, without a known reason, or of many lines is not clear."""
    assert media_fuzz._unclear(refusal, "picture")
    assert not media_fuzz._unclear(
        MediaRefused("image 1 is bad", reason="undecodable"), "picture"
    )


def test_the_command_tells_by_its_exit_code(monkeypatch, tmp_path):
    """0 if all promises were kept, 1 if one was not; the record is written either way."""
    target = tmp_path / "record.json"
    words = ["--pictures", "4", "--clips", "2", "--json", str(target)]
    assert main(words) == 0
    assert json.loads(target.read_text())["summary"]["pictures"] == 4
    monkeypatch.setattr(media_fuzz, "RawProcessor", WrongSize)
    assert main(words) == 1
    assert json.loads(target.read_text())["summary"]["broken_promises"] >= 2
