"""Pictures of any family of transformers, through the checkpoint's own processor.

    (width, height) -> its processor on a blank picture -> ids -> pieces   kept for each size
    pixels          -> its processor                    -> arrays as they come

Nothing of a family is known here, so sizes cost a run of its processor each, once.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from mmserve.core import BadRequest, MediaLayout, MediaStyle, UnsupportedModel
from mmserve.vision.identity import stable_digest
from mmserve.vision.processor import Bounds, FrameFacts, Inputs, ItemPlan, Recipe
from mmserve.vision.refusal import refused

__all__ = ["HostedProcessor", "load"]

_MAX_SIZES = 4096
"""Sizes whose plans are kept."""
_CHECKED_SIZES = ((64, 48), (48, 64), (131, 47))
"""Widths and heights of pictures that a processor is checked with."""
_TEXT_NAMES = ("input_ids", "attention_mask", "token_type_ids", "mm_token_type_ids")
_FILES = ("processor_config.json", "preprocessor_config.json")


@dataclass(frozen=True)
class HostedProcessor:
    """A `Processor` around one of transformers.

    Args:
        processor: of the checkpoint, with its tokenizer.
        image_token_id: placeholder of features in the model.
        patch_size: side of a patch in pixels, for the cost of encoding only.
        fingerprint: see `Processor.fingerprint`.

    One call of `processor` runs at a time: its tokenizer is not made for threads.
    """

    processor: Any
    image_token_id: int
    patch_size: int
    fingerprint: bytes
    _plans: OrderedDict[tuple[int, int], ItemPlan] = field(
        init=False, repr=False, default_factory=OrderedDict
    )
    _lock: threading.Lock = field(init=False, repr=False, default_factory=threading.Lock)

    @property
    def style(self) -> MediaStyle:
        """See `Processor.style`: frames of clips stand as pictures."""
        text = str(self.processor.image_token)
        return MediaStyle(image_token_id=self.image_token_id, image_text=text)

    def picture(self, width: int, height: int, bounds: Bounds) -> ItemPlan:
        """See `Processor.picture`.

        Cost: of a size not seen before, a run of the processor on a blank picture. Raises
        BadRequest for any bounds, MediaRefused for a size that the processor cannot take.
        """
        _check_unbounded(bounds)
        with self._lock:
            return self._plan(width, height)

    def clip(self, frames: Sequence[FrameFacts], bounds: Bounds) -> tuple[ItemPlan, ...]:
        """See `Processor.clip`: every frame is a picture."""
        return tuple(
            replace(self.picture(frame.width, frame.height, bounds), frames=(place,))
            for place, frame in enumerate(frames)
        )

    def inputs(self, frames: Sequence[NDArray[np.uint8]], recipe: Recipe) -> Inputs:  # noqa: ARG002
        """See `Processor.inputs`: what the processor makes of a picture, a batch of one."""
        height, width = frames[0].shape[:2]
        with self._lock:
            made = self._made(Image.fromarray(frames[0]))
            planned = self._plan(width, height).layout.num_features
        num_features = int((made["input_ids"] == self.image_token_id).sum())
        if num_features != planned:
            message = f"has {num_features} features, pictures of its size have {planned}"
            raise refused("unsupported", message)
        return {name: value for name, value in made.items() if name not in _TEXT_NAMES}

    def check_layouts(self) -> None:
        """Raise ValueError if pictures stand otherwise beside others, or in text, than alone.

        Cost: runs the processor on a few small blank pictures.
        """
        pictures = [Image.new("RGB", size) for size in _CHECKED_SIZES]
        token = self.processor.image_token
        made = self.processor(
            images=pictures,
            text=[f"a{token}b{token}{token}c"],
            add_special_tokens=False,
            return_tensors="np",
        )
        first, second, third = (self._written(picture) for picture in pictures)
        alone = f"a{first}b{second}{third}c"
        wanted = self.processor.tokenizer.encode(alone, add_special_tokens=False)
        if np.asarray(made["input_ids"])[0].tolist() != wanted:
            raise ValueError("its processor writes pictures by what stands beside them")

    def _written(self, picture: Image.Image) -> str:
        """A picture's layout as text."""
        pieces = self._planned(picture).layout.pieces
        spelled = self.processor.tokenizer.convert_ids_to_tokens(self.image_token_id)
        return "".join(spelled * one if isinstance(one, int) else one for one in pieces)

    def _plan(self, width: int, height: int) -> ItemPlan:
        """Of a size, kept. Changes: the plans; the lock is held."""
        plan = self._plans.get((width, height))
        if plan is None:
            plan = self._planned(Image.new("RGB", (width, height)))
            self._plans[width, height] = plan
        self._plans.move_to_end((width, height))
        if len(self._plans) > _MAX_SIZES:
            self._plans.popitem(last=False)
        return plan

    def _planned(self, picture: Image.Image) -> ItemPlan:
        try:
            made = self._made(picture)
            pieces = self._pieces(made["input_ids"][0].tolist())
        except Exception as error:  # whatever a processor of transformers raises
            size = f"{picture.width} x {picture.height}"
            predicate = f"of {size} pixels cannot be prepared: {error}"
            raise refused("unsupported", predicate) from error
        num_values = made["pixel_values"].size // 3
        num_patches = max(1, num_values // self.patch_size**2)
        return ItemPlan(MediaLayout(pieces), num_patches)

    def _pieces(self, ids: Sequence[int]) -> tuple[str | int, ...]:
        """Runs of placeholders as numbers, what lies between as text. Raises ValueError."""
        tokenizer = self.processor.tokenizer
        pieces: list[str | int] = []
        for is_feature, group in groupby(ids, key=lambda one: one == self.image_token_id):
            run = list(group)
            if is_feature:
                pieces.append(len(run))
                continue
            text = tokenizer.decode(run, clean_up_tokenization_spaces=False)
            if tokenizer.encode(text, add_special_tokens=False) != run:
                raise ValueError(f"tokens {run} of its layout are not those of a text")
            pieces.append(text)
        if not any(isinstance(piece, int) for piece in pieces):
            raise ValueError("its processor writes no placeholders")
        return tuple(pieces)

    def _made(self, picture: Image.Image) -> Inputs:
        made = self.processor(
            images=[picture],
            text=[self.processor.image_token],
            add_special_tokens=False,
            return_tensors="np",
        )
        return {name: np.asarray(value) for name, value in made.items()}


def load(directory: Path, config: Mapping[str, Any]) -> HostedProcessor:
    """The checkpoint's own processor, on Pillow where it has such a backend.

    Raises UnsupportedModel if the installed transformers cannot build it, or if where pictures
    stand cannot be told from their sizes.
    """
    word = str(config.get("model_type", ""))
    try:
        processor = _load(directory, config)
        processor.check_layouts()
    except Exception as error:
        reason = " ".join(str(error).split()).rstrip(".")
        raise UnsupportedModel(
            f"pictures of {word!r} are not supported: {reason}",
            hint="pip install torchvision" if "torchvision" in reason.lower() else None,
            architecture=word,
        ) from error
    return processor


def _load(directory: Path, config: Mapping[str, Any]) -> HostedProcessor:
    """Raises whatever transformers does, ValueError if something is not there."""
    import transformers  # noqa: PLC0415 - heavy

    texts = [path.read_text() for name in _FILES if (path := directory / name).is_file()]
    if not texts:
        raise ValueError(f"it has neither {' nor '.join(_FILES)}")
    auto: Any = transformers.AutoProcessor
    processor = auto.from_pretrained(directory, backend="pil", trust_remote_code=False)
    whole = transformers.AutoConfig.from_pretrained(directory, trust_remote_code=False)
    token = getattr(whole, "image_token_id", getattr(whole, "image_token_index", None))
    if not isinstance(token, int) or not getattr(processor, "image_token", None):
        raise ValueError("no token stands for pictures")
    kind = type(processor).__name__
    digest = stable_digest("hosted", transformers.__version__, kind, *texts)
    return HostedProcessor(processor, token, _patch_size(config), digest)


def _patch_size(config: Mapping[str, Any]) -> int:
    size = (config.get("vision_config") or {}).get("patch_size", 14)
    return int(size[0] if isinstance(size, list) else size)


def _check_unbounded(bounds: Bounds) -> None:
    for name, bound in (("max_pixels", bounds.max_pixels), ("min_pixels", bounds.min_pixels)):
        if bound is not None:
            raise BadRequest(
                f"asks for {name} = {bound}, but this model's processor chooses sizes itself",
                field=name,
                reason="unsupported",
                hint=f"leave out {name}",
            )
