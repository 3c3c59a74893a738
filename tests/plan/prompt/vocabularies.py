"""Small vocabularies and chat templates in the styles of public models, made for the tests."""

from __future__ import annotations

import functools

from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

TEXTS = (
    "How many red cubes are on the table? There are three red cubes.",
    "Hello there, how are you today?  I am fine, thank you.\n\nWhat is in the picture?",
    "USER: what is this? ASSISTANT: this is a small blue ball, left of the red one.",
    "system user assistant You are a helpful assistant. frame 1: frame 2: Judge its clarity.",
    "[INST] <<SYS>> Be brief. <</SYS>> Is the essay about the picture? [/INST] yes </s>",
)

CONTROLS = ("<s>", "</s>", "<|im_start|>", "<|im_end|>", "<image>", "<video>")


def _add_controls(tokenizer: Tokenizer, *names: str) -> None:
    tokenizer.add_special_tokens(
        [AddedToken(name, special=True, normalized=False) for name in names]
    )
    tokenizer.add_tokens(
        [AddedToken(name, special=False, normalized=False) for name in ("<think>", "</think>")]
    )


def _bos(tokenizer: Tokenizer) -> None:
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A",
        pair="<s> $A <s> $B",
        special_tokens=[("<s>", tokenizer.token_to_id("<s>"))],
    )


@functools.cache
def byte_level() -> Tokenizer:
    """Byte-level BPE with merges, as GPT-2 and Qwen have."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXTS * 20, trainer)
    _add_controls(tokenizer, *CONTROLS)
    _bos(tokenizer)
    return tokenizer


def _sentencepiece_bpe() -> Tokenizer:
    pieces = {"<unk>": 0, "<s>": 1, "</s>": 2}
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.Metaspace()
    trained.train_from_iterator(
        TEXTS * 20, trainers.BpeTrainer(vocab_size=200, show_progress=False)
    )
    pieces |= {f"<0x{value:02X}>": 3 + value for value in range(256)}
    vocab = trained.get_vocab()
    for text in sorted(vocab, key=vocab.__getitem__):
        pieces.setdefault(text, len(pieces))
    merges = [
        (text[:cut], text[cut:])
        for text in sorted(vocab, key=vocab.__getitem__)
        for cut in range(1, len(text))
        if text[:cut] in vocab and text[cut:] in vocab
    ]
    model = models.BPE(pieces, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    return Tokenizer(model)


@functools.cache
def metaspace(scheme: str = "first") -> Tokenizer:
    """Sentencepiece-like BPE with byte fallback, as new Llama files have."""
    tokenizer = _sentencepiece_bpe()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False)
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)])
    _add_controls(tokenizer, "<unk>", *CONTROLS)
    _bos(tokenizer)
    return tokenizer


@functools.cache
def legacy() -> Tokenizer:
    """Sentencepiece-like BPE with the older normalizer that puts a blank before every run."""
    tokenizer = _sentencepiece_bpe()
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)])
    _add_controls(tokenizer, "<unk>", *CONTROLS)
    _bos(tokenizer)
    return tokenizer


@functools.cache
def unigram() -> Tokenizer:
    """Unigram sentencepiece whose vocabulary itself holds control tokens with a high score."""
    characters = sorted({"▁", *"".join(TEXTS)})
    vocab = [("<unk>", 0.0), ("</s>", 0.0), ("<s>", 0.0)]
    vocab += [(character, -5.0) for character in characters]
    vocab += [("▁red", -3.0), ("▁the", -2.0), ("▁t", -3.0)]
    tokenizer = Tokenizer(models.Unigram(vocab, unk_id=0, byte_fallback=False))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="always")
    _add_controls(tokenizer, "<unk>", *CONTROLS)
    return tokenizer


VOCABULARIES = {
    "byte_level": byte_level,
    "metaspace": metaspace,
    "legacy": legacy,
    "unigram": unigram,
}

NAMED = {"bos_token": "<s>", "eos_token": "</s>", "image_token": "<image>"}

CHATML = (
    "{% if messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' }}{% endif %}"
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' }}"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<image>"
    "{% elif 'text' in part %}{{ part['text'] }}{% endif %}"
    "{% endfor %}{% endif %}{{ '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
"""Default system text, strings or lists, pictures where they stand."""

INST = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}"
    "{% set system = '<<SYS>>\\n' + messages[0]['content'] | trim + '\\n<</SYS>>\\n\\n' %}"
    "{% set messages = messages[1:] %}{% else %}{% set system = '' %}{% endif %}"
    "{% for message in messages %}"
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}"
    "{% if loop.index0 == 0 %}{% set content = system + message['content'] %}"
    "{% else %}{% set content = message['content'] %}{% endif %}"
    "{% if message['role'] == 'user' %}{{ '[INST] ' + content.strip() + ' [/INST]' }}"
    "{% else %}{{ ' ' + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}"
)
"""Strings only, trims, no generation prompt, roles that must alternate."""

LLAVA = (
    "{% for message in messages %}"
    "{% if message['role'] != 'system' %}{{ message['role'].upper() + ': ' }}{% endif %}"
    "{% for part in message['content'] | selectattr('type', 'equalto', 'image') %}"
    "{{ '<image>\\n' }}{% endfor %}"
    "{% for part in message['content'] | selectattr('type', 'equalto', 'text') %}"
    "{{ part['text'] + ' ' }}{% endfor %}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}"
)
"""Lists only, and all pictures of a message before its text."""

THINKER = (
    "{% for message in messages %}"
    "{% set content = message['content'] %}"
    "{% if message['role'] == 'assistant' and '</think>' in content %}"
    "{% set content = content.split('</think>')[-1].lstrip('\\n') %}{% endif %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + content + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n<think>\\n' }}{% endif %}"
)
"""Leaves the thinking of earlier turns out, and begins a new one."""

WRAPPED = CHATML.replace("<image>", "<|im_start|><image><|im_end|>")
"""Writes control tokens around pictures."""

TEMPLATES = {"chatml": CHATML, "inst": INST, "llava": LLAVA, "thinker": THINKER}
