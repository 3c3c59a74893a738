"""Trains the byte-level BPE of tabletop on generated text and writes its chat template.

    python -m training.tokenizer FOLDER

Takes a few seconds; the same texts give the same tokenizer.
"""

import argparse
import random
from collections.abc import Iterator
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from mmserve.testing.scenes_questions import MAKERS, compare_pictures
from mmserve.testing.scenes_stories import ask_story, sample_story
from mmserve.testing.scenes_words import LEADS, PLURALS
from mmserve.testing.scenes_world import sample_layout
from training.model import VOCABULARY

SPECIAL = (
    "<pad>",
    "<s>",
    "<|end|>",
    "<|system|>",
    "<|user|>",
    "<|assistant|>",
    "<image>",
    "<video>",
)

SYSTEM_TEXTS = (
    "You are a helpful assistant.",
    "You answer questions about pictures.",
    "You look at pictures of a table and answer briefly.",
    "Answer in one word or number where you can.",
    "You are tabletop, a small model that sees.",
    "Be brief.",
)

# Content is a string, or a list of parts of type text, image and video, in any role.
CHAT_TEMPLATE = (
    "{{ bos_token }}"
    "{%- for message in messages %}"
    "{%- set role = 'user' if message['role'] == 'tool' else message['role'] %}"
    "{{- '<|' + role + '|>' }}"
    "{%- if message['content'] is string %}"
    "{{- message['content'] }}"
    "{%- else %}"
    "{%- for part in message['content'] %}"
    "{%- if part['type'] == 'text' %}{{- part['text'] }}"
    "{%- elif part['type'] == 'image' %}{{- '<image>' }}"
    "{%- elif part['type'] == 'video' %}{{- '<video>' }}"
    "{%- endif %}"
    "{%- endfor %}"
    "{%- endif %}"
    "{{- '<|end|>' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|assistant|>' }}{%- endif %}"
)

EVERYDAY = (
    "Hello! How are you? I can see a picture and the number of objects on the table. "
    "The first object is on the left, the second one is on the right, and this is the last. "
    "Please tell me what you see in these pictures, which one is larger, and why it is so. "
    "Use the tool to get the weather of a city, then answer the user with a short text. "
    "picture 1: picture 2: frame 1: frame 2: video, image, yes, no, none, nothing, equal. "
)


def corpus(num_scenes: int = 6000) -> Iterator[str]:
    """Questions and answers of every kind, and a little everyday English."""
    rng = random.Random("tokenizer")
    for _ in range(num_scenes):
        layout, other = sample_layout(rng), sample_layout(rng)
        asked = [made for make in MAKERS.values() if (made := make(layout, rng))]
        asked += [compare_pictures(layout, other, rng), *ask_story(sample_story(rng), rng)]
        for question in asked:
            yield question.question
            yield question.answer
    yield from [EVERYDAY, *LEADS, *SYSTEM_TEXTS, *PLURALS.values()] * 20
    yield from ["frame", "picture", "Frame", "Picture"] * 2000


def train_tokenizer() -> PreTrainedTokenizerFast:
    """A tokenizer whose plain `encode` adds `<s>` once, as Llama's does.

    Every byte is a token, so any text round-trips; digits are always tokens of their own.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus(), trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<s>",
        eos_token="<|end|>",
        pad_token="<pad>",
        extra_special_tokens={"image_token": "<image>", "video_token": "<video>"},
        additional_special_tokens=list(SPECIAL[3:]),
        clean_up_tokenization_spaces=False,
        model_max_length=2048,
        chat_template=CHAT_TEMPLATE,
    )


def main() -> None:
    """Trains and saves."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    train_tokenizer().save_pretrained(parser.parse_args().folder)


if __name__ == "__main__":
    main()
