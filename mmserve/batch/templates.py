"""Questions made of a row's fields: a Jinja template, in a sandbox and bounded.

Each turn of a loop and each call of a macro is counted, so that no template runs for ever;
texts are bounded as they grow; nothing in it is left to chance, for a row is read twice.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Never

from jinja2 import StrictUndefined, Template, TemplateError, TemplateSyntaxError, nodes
from jinja2.exceptions import SecurityError
from jinja2.meta import find_undeclared_variables
from jinja2.sandbox import ImmutableSandboxedEnvironment

from mmserve.batch.values import Fault, shown
from mmserve.core import BadRequest

__all__ = ["MAX_RENDERED_BYTES", "QuestionTemplate"]

MAX_RENDERED_BYTES = 2**20
_MAX_REPEATS = 100_000
_COUNT, _BOUND = "_counted_", "_bounded_"
_MISSING = re.compile(r"'(.+)' is undefined")
_REPEATED = (nodes.For, nodes.Macro, nodes.CallBlock)
_LOADING = (nodes.Include, nodes.Import, nodes.FromImport, nodes.Extends)


class _Environment(ImmutableSandboxedEnvironment):
    """The sandbox, without chance, and without products that fill memory."""

    intercepted_binops = frozenset({"*", "**", "+", "%"})

    def __init__(self) -> None:
        super().__init__(undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
        del self.globals["lipsum"]
        del self.filters["random"]

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:  # noqa: ANN401
        """`left operator right`, if it is not too large."""
        if operator == "**" and not (abs(left) < 2**64 and abs(right) <= 64):
            raise SecurityError("a power is too large")
        if operator == "*":
            for one, many in ((left, right), (right, left)):
                is_sized = isinstance(one, str | list | tuple) and isinstance(many, int)
                if is_sized and len(one) * many > MAX_RENDERED_BYTES:
                    raise SecurityError(f"a text is repeated {many:,} times")
        return _bounded(super().call_binop(context, operator, left, right))


def _bounded(value: Any) -> Any:  # noqa: ANN401
    if isinstance(value, str | list | tuple) and len(value) > MAX_RENDERED_BYTES:
        raise SecurityError(f"a value is larger than {MAX_RENDERED_BYTES:,}")
    if isinstance(value, int) and value.bit_length() > 8192:
        raise SecurityError("a number is too large")
    return value


def _counter() -> Callable[[], str]:
    """Counts its calls. Raises SecurityError from the one that is too many on."""
    left = _MAX_REPEATS

    def count() -> str:
        nonlocal left
        left -= 1
        if left < 0:
            raise SecurityError(f"its loops turn more than {_MAX_REPEATS:,} times")
        return ""

    return count


class QuestionTemplate:
    """A compiled template.

    Raises BadRequest: the text is no template, with the line; or it loads other files.
    """

    def __init__(self, source: str) -> None:
        environment = _Environment()
        try:
            tree = environment.parse(source)
            self.names = frozenset(find_undeclared_variables(tree) - environment.globals.keys())
            if next(tree.find_all(_LOADING), None) is not None:
                raise _refused("it loads another template, write that one's text into it")
            _insert_counts(tree)
            _insert_bounds(tree)
            self._compiled: Template = environment.from_string(tree)
        except TemplateSyntaxError as error:
            raise _refused(str(error.message).rstrip("."), error.lineno) from None
        except (TemplateError, RecursionError, OverflowError) as error:
            raise _refused(str(error) or type(error).__name__) from None

    @property
    def uses_question(self) -> bool:
        """Whether the row's question is a part of what is asked. Pure."""
        return "question" in self.names

    def render(self, fields: Mapping[str, Any]) -> str:
        """The question that these fields make; a field that is None is not there. Pure.

        Raises Fault: a field is missing, the template fails, or its text is too long.
        """
        given = {name: value for name, value in fields.items() if value is not None}
        pieces, size = [], 0
        try:
            for piece in self._compiled.generate(
                given, **{_COUNT: _counter(), _BOUND: _bounded}
            ):
                size += len(piece.encode("utf-8", "surrogatepass"))
                if size > MAX_RENDERED_BYTES:
                    _too_long()
                pieces.append(piece)
        except Fault:
            raise
        except Exception as error:  # noqa: BLE001 - a template may fail in any way
            raise Fault(_told(error, given)) from None
        return "".join(pieces)


def _too_long() -> Never:
    raise Fault(f"the template's text is longer than {MAX_RENDERED_BYTES:,} bytes")


def _told(error: Exception, fields: Mapping[str, Any]) -> str:
    missing = _MISSING.fullmatch(str(error))
    if missing and missing[1] not in fields:
        return f"field {shown(missing[1])} is missing, the template uses it"
    return f"the template fails: {str(error)[:200] or type(error).__name__}"


def _insert_counts(tree: nodes.Template) -> None:
    """Count each turn of a loop and each call of a macro. Changes: `tree`."""
    found: list[Any] = list(tree.find_all(_REPEATED))
    for node in found:
        call = nodes.Call(nodes.Name(_COUNT, "load"), [], [], None, None)
        node.body.insert(0, nodes.Output([call]).set_lineno(node.lineno))


def _insert_bounds(tree: nodes.Template) -> None:
    """Bound each text that `~` makes. Changes: `tree`."""
    for node in list(tree.find_all(nodes.Concat)):
        joined = nodes.Concat(node.nodes, lineno=node.lineno)
        call = nodes.Call(nodes.Name(_BOUND, "load"), [joined], [], None, None)
        call.set_lineno(node.lineno)
        node.nodes = [call]


def _refused(reason: str, line: int | None = None) -> BadRequest:
    place = "" if line is None else f", line {line}"
    return BadRequest(
        f"the template does not compile{place}: {reason}",
        field="template",
        reason="syntax",
        line=line,
        hint="it is Jinja text, as in: Is there a {{ thing }} in the clip?",
    )
