"""The examples are short, run as they stand, and print what they promise."""

from __future__ import annotations

from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[3] / "examples"
MAX_LINES = 60
PRINTED = {
    "branch_solve_merge": ["3, top left, square", "witness 1: 0 right, witness 2: 2 right"],
    "essay_judge": ["grade: A", "grade: C", "'orange'", "grade: off the subject"],
    "few_shot_classification": ["good I loved", "bad  The room", "good The view", "bad  The"],
    "generative_agents": ["Round 3", "Mira at the mill: There is a dance at the mill."],
    "json_extraction": ["2 objects, number None", "number 76", "top: medium orange star"],
    "many_questions": ["What do you see at the upper left corner?\n  a large orange triangle"],
    "multi_document_qa": ["opens the boat shed.", "opens the old piano.", "opens the tea box."],
    "multi_turn_chat": ["\n  3   (", "\n  2   (", "\n  bottom left   (", "\n  medium   ("],
    "react_agent": ["calculate[3 * 10]", "finish[30]", "finish[48]"],
    "retrieval_qa": ["  1872   <-", "  4 coins   <-", "  Monday   <-", "  kites   <-"],
    "self_consistency": ["answer 6, with", "answer 9, with", "answer 11, with"],
    "skeleton_of_thought": ["Keep a regular sleep schedule", "Avoid overwatering"],
    "tree_of_thought": ["The queen had a garden", "Nora lost her key"],
    "two_picture_comparison": ["2 objects and 3: picture 2", "3 objects and 2: picture 1"],
    "video_qa": ["a small red cross appeared", "a medium red square moved right"],
}


def test_an_example_is_short(name) -> None:
    """An example has at most 60 lines, and its docstring says how to run it."""
    lines = (FOLDER / f"{name}.py").read_text().splitlines()

    assert len(lines) <= MAX_LINES
    assert any(f"python examples/{name}.py" in line for line in lines[1:4])


def test_main_prints_what_is_right(name, example, capsys: pytest.CaptureFixture[str]) -> None:
    """`main` prints the right answers, and of free texts what they begin with."""
    example.module.main([], backend=example.place.engine)

    printed = capsys.readouterr().out
    for expected in PRINTED[name]:
        assert expected in printed


def test_help_tells_the_flags(name, example, capsys: pytest.CaptureFixture[str]) -> None:
    """`--help` shows what the program does, and `--url` and `--model`."""
    with pytest.raises(SystemExit) as left:
        example.module.main(["--help"])

    shown = capsys.readouterr().out
    assert left.value.code == 0
    assert f"python examples/{name}.py" in shown
    assert "--url URL" in shown
    assert "--model MODEL" in shown
