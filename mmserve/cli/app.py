"""The commands put together, and how each ends."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Annotated

import typer
from typer.core import TyperGroup

from mmserve.cli import console
from mmserve.cli.ask import ask
from mmserve.cli.demo import demo
from mmserve.cli.drift import drift
from mmserve.cli.models import models
from mmserve.cli.serve import serve
from mmserve.cli.show import show
from mmserve.cli.video_qa import video_qa
from mmserve.core import BadRequest, MmserveError

__all__ = ["app", "main"]

_EXIT_CODES = (
    "Exit codes: 0 done; 1 failed or not finished; 2 wrong use (flags and their values); "
    "3 finished, but some rows failed (video-qa, drift); 4 more flips than --most (drift); "
    "130 interrupted."
)


class _Commands(TyperGroup):
    """Turns errors that a user can act on into a message and an exit code."""

    def invoke(self, ctx: typer.Context) -> object:  # type: ignore[override]
        try:
            return super().invoke(ctx)
        except (MmserveError, OSError) as error:
            if isinstance(error, BrokenPipeError):
                raise
            console.fail(error)
            raise typer.Exit(2 if isinstance(error, BadRequest) else 1) from None
        except KeyboardInterrupt:
            console.note("interrupted")
            raise typer.Exit(130) from None


app = typer.Typer(
    cls=_Commands,
    name="mmserve",
    help="Ask many questions about pictures and clips; what was seen once is paid once.",
    epilog=_EXIT_CODES,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(*, is_wanted: bool) -> None:
    if is_wanted:
        from importlib.metadata import version  # noqa: PLC0415 - takes 0.05 s

        console.say(f"mmserve {version('mmserve')}")
        raise typer.Exit


@app.callback()
def _options(
    *,
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            help="Print the version and exit.",
            is_eager=True,
            callback=lambda value: _print_version(is_wanted=value),
        ),
    ] = False,
) -> None:
    pass


def _help(command: Callable[..., None]) -> str:
    """The docstring with each paragraph on one line, for the terminal to fold."""
    paragraphs = inspect.cleandoc(command.__doc__ or "").split("\n\n")
    return "\n\n".join(" ".join(paragraph.split("\n")) for paragraph in paragraphs)


for _name, _command in (
    ("demo", demo),
    ("serve", serve),
    ("ask", ask),
    ("video-qa", video_qa),
    ("models", models),
    ("show", show),
    ("drift", drift),
):
    app.command(_name, help=_help(_command))(_command)


def main() -> None:
    """Run the command line of this process; ends the process."""
    app()
