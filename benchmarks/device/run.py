"""All sections in one process, a table, and JSON: see `run.sh`."""

from __future__ import annotations

import argparse
import gc
import json
import platform
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from benchmarks.device import ceilings, kernels, media, models
from benchmarks.device.programs import Medium, answers, decode_s, greedy, repeated, theirs
from benchmarks.device.sizes import Line, Setting
from mmserve.kernels import ChosenOps, choose_ops

__all__ = ["main"]

LIMIT_S = 460.0
"""A section that has begun ends; 20 seconds are left for the last one."""


def main() -> int:
    """Run every section; 1 if one broke or greedy answers differ, else 0."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dry-run", action="store_true", help="tiny sizes on the CPU")
    parser.add_argument("--out", type=Path, help="where the JSON goes")
    options = parser.parse_args()
    if not options.dry_run and not torch.cuda.is_available():
        print("no CUDA device: use --dry-run", file=sys.stderr)
        return 2
    setting = Setting(
        device=torch.device("cpu" if options.dry_run else "cuda"),
        dtype=torch.float32 if options.dry_run else torch.bfloat16,
        is_tiny=options.dry_run,
        limit_s=LIMIT_S,
    )
    with torch.inference_mode():
        chosen = choose_ops("auto", setting.device, setting.dtype)
        found, lines, broken = _sections(setting, chosen)
    record = {
        "machine": _machine(setting),
        "kernels": list(chosen.notes),
        "seconds": time.monotonic() - setting.began_s,
        "lines": [line.as_dict() for line in lines],
        "copy_bytes_per_s": found.copy_bytes_per_s,
        "flop_per_s": found.flop_per_s,
        "broken": broken,
    }
    _print_table(record, lines)
    if options.out is not None:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    else:
        print(json.dumps(record))
    return 1 if broken else 0


def _sections(
    setting: Setting, chosen: ChosenOps
) -> tuple[ceilings.Ceilings, list[Line], dict[str, str]]:
    most, lines = ceilings.measure(setting)
    broken: dict[str, str] = {}
    sections: dict[str, Callable[[], list[Line]]] = {
        "kernels": lambda: kernels.measure(setting, chosen.ops, most),
        "equality": lambda: _equality(setting, chosen),
        "llava": lambda: _llava(setting, chosen, most),
        "qwen": lambda: _qwen(setting, chosen, most),
        "tests": lambda: _tests(setting),
    }
    for name, work in sections.items():
        if setting.left_s <= 0:
            broken[name] = "no time was left"
            continue
        try:
            new = work()
        except Exception:  # noqa: BLE001 - the other sections go on
            broken[name] = traceback.format_exc(limit=6)
            continue
        lines += new
        gc.collect()  # graphs and what they were captured from hold each other
        if setting.device.type == "cuda":
            torch.cuda.empty_cache()
    for line in lines:
        if line.section == "equality" and line.value < 1.0:
            broken[line.name] = "greedy answers differ"
        if line.name.endswith("error") and not line.value <= _most_error(setting):
            broken[line.name] = f"relative error {line.value:.2g}"
    return most, lines, broken


def _most_error(setting: Setting) -> float:
    """Relative norm of the error that rounding may leave. Pure."""
    return 1e-5 if setting.dtype == torch.float32 else 1e-2


def _equality(setting: Setting, chosen: ChosenOps) -> list[Line]:
    """Share of greedy tokens equal to transformers' up to where its own two best are close."""
    pair = models.text(setting, chosen.ops, 4096)
    rng = np.random.default_rng(3)
    prompts = [rng.integers(8, 400, length) for length in (1, 7, 40, 130)]
    num = 8 if setting.is_tiny else 24
    ours = greedy(pair, prompts, num)
    shares = [
        _agreement(setting, pair, prompt, answer, {})
        for prompt, answer in zip(prompts, ours, strict=True)
    ]
    return [
        Line(
            section="equality",
            name="greedy, text, four rows together",
            value=float(np.mean(shares)),
            unit="share",
            note="tokens within the width of rounding of transformers' best",
        )
    ]


def _agreement(
    setting: Setting,
    pair: models.Pair,
    prompt: np.ndarray[Any, np.dtype[np.int64]],
    answer: list[int],
    extra: Mapping[str, np.ndarray[Any, Any]],
) -> float:
    """Share of drawn tokens whose logit is within rounding of the best, given what is before.

    Rounding is a 64th of the spread of the logits in half precision, 1e-3 of it in float32.
    """
    ids = torch.tensor([[*prompt.tolist(), *answer]], device=setting.device)
    inputs = {name: repeated(name, array, 1, setting) for name, array in extra.items()}
    logits = pair.theirs(input_ids=ids, **inputs).logits[0, len(prompt) - 1 : -1].float()
    width = 1e-3 if setting.dtype == torch.float32 else 1 / 64
    drawn = logits.gather(1, ids[0, len(prompt) :, None]).squeeze(1)
    gap = logits.max(dim=1).values - drawn
    spread = logits.max(dim=1).values - logits.mean(dim=1)
    return float((gap <= width * spread).float().mean())


def _same(
    name: str, setting: Setting, pair: models.Pair, found: list[Medium], length: int
) -> Line:
    """As `_equality`, of questions on media, all of them answered together."""
    asked = [(medium, question) for medium in found for question in medium.questions]
    shares = [
        _agreement(
            setting, pair, np.concatenate([medium.prefix, question]), answer, medium.extra
        )
        for (medium, question), answer in zip(asked, answers(pair, found, length), strict=True)
    ]
    return Line(
        section="equality",
        name=f"greedy, {name}, {len(asked)} questions",
        value=float(np.mean(shares)),
        unit="share",
        note="tokens within the width of rounding of transformers' best",
    )


def _llava(setting: Setting, chosen: ChosenOps, most: ceilings.Ceilings) -> list[Line]:
    num, asked, length = (2, 2, 3) if setting.is_tiny else (16, 8, 16)
    pair = models.llava(setting, chosen.ops, 4096 if setting.is_tiny else 32_768)
    lines = _decode("llava-7b", setting, pair, most)
    found = media.pictures(setting, num, asked)
    lines.append(_same("llava-7b", setting, pair, found[:2], length))
    return [*lines, *_programs("llava-7b pictures", setting, pair, found, length)]


def _qwen(setting: Setting, chosen: ChosenOps, most: ceilings.Ceilings) -> list[Line]:
    num, asked, length = (1, 2, 3) if setting.is_tiny else (4, 10, 16)
    pair = models.qwen_vl(setting, chosen.ops, 4096 if setting.is_tiny else 32_768)
    lines = _decode("qwen2.5-vl-7b", setting, pair, most)
    found = media.clips(setting, num, asked)
    lines.append(_same("qwen2.5-vl-7b", setting, pair, found[:1], length))
    return [*lines, *_programs("qwen2.5-vl-7b clips", setting, pair, found, length)]


def _decode(
    name: str, setting: Setting, pair: models.Pair, most: ceilings.Ceilings
) -> list[Line]:
    """A decode step against the time to read its weights at the copy rate."""
    lines = []
    read_s = pair.weight_bytes / most.copy_bytes_per_s
    context, steps = (32, 3) if setting.is_tiny else (512, 20)
    for num_rows in (1, 2) if setting.is_tiny else (1, 8, 32):
        seconds = decode_s(setting, pair, num_rows, context, steps)
        lines.append(
            Line(
                section="decode",
                name=f"{name}, {num_rows} rows at {context}",
                value=seconds * 1e3,
                unit="ms",
                against=read_s / seconds,
                note=f"share of the weight-read time; {pair.note}",
            )
        )
    return lines


def _programs(
    name: str, setting: Setting, pair: models.Pair, found: list[Medium], length: int
) -> list[Line]:
    """Questions a second, ours of all media at once and transformers' medium by medium."""
    num = sum(len(medium.questions) for medium in found)
    times = []
    for work in (
        lambda: answers(pair, found, length),
        lambda: theirs(setting, pair, found, length),
    ):
        work() if setting.is_tiny else _warm(pair, setting, found, length)
        setting.wait()
        began = time.perf_counter()
        work()
        setting.wait()
        times.append(time.perf_counter() - began)
    ours_s, theirs_s = times
    return [
        Line(
            section="programs",
            name=f"{name}, {len(found)} x {num // len(found)}",
            value=num / ours_s,
            unit="questions/s",
            against=theirs_s / ours_s,
            note=f"times transformers' {num / theirs_s:.1f}, a batch for each medium",
        )
    ]


def _warm(pair: models.Pair, setting: Setting, found: list[Medium], length: int) -> None:
    """Compile and capture what the measured run will need."""
    answers(pair, found, 2)
    theirs(setting, pair, found[:1], min(length, 2))


def _tests(setting: Setting) -> list[Line]:
    """The tests that are marked for a GPU; the bare machine has no plug-ins of pytest."""
    command = [sys.executable, "-m", "pytest", "tests/gpu", "-q", "-o", "addopts="]
    command += ["--import-mode=importlib", "-p", "no:cacheprovider"]
    command += ["--noconftest", "-o", "filterwarnings="]
    if setting.is_tiny:
        command.append("--collect-only")
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=max(setting.left_s, 20)
    )
    if done.returncode:
        raise RuntimeError(done.stdout[-2000:] + done.stderr[-1000:])
    return [Line(section="tests", name="tests/gpu", value=1.0, unit="passed")]


def _machine(setting: Setting) -> dict[str, Any]:
    is_cuda = setting.device.type == "cuda"
    return {
        "device": torch.cuda.get_device_name() if is_cuda else platform.processor(),
        "dtype": str(setting.dtype).removeprefix("torch."),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }


def _print_table(record: dict[str, Any], lines: list[Line]) -> None:
    print("device:", record["machine"]["device"], "|", "; ".join(record["kernels"]))
    for line in lines:
        against = "" if line.against is None else f"{line.against:10.3f}"
        print(
            f"{line.section:10} {line.name:42} {line.value:12.4g} {line.unit:12}"
            f" {against:>10}  {line.note}"
        )
    for name, reason in record["broken"].items():
        print(f"BROKEN     {name}: {reason}")
    print(f"{record['seconds']:.0f} s in all")


if __name__ == "__main__":
    sys.exit(main())
