"""Outputs that a slow reader has not taken are joined, and say the same."""

from __future__ import annotations

from mmserve.core import Finish, Output, Timing, TokenLogprob, Usage
from mmserve.engine.ticket import EngineTicket


def news(index: int, number: int, finish: Finish | None = None) -> Output:
    """The `number`th token of a sequence."""
    return Output(
        request_id="r",
        index=index,
        text=f"{number}.",
        token_ids=(number,),
        usage=Usage(1, completion_tokens=number + 1),
        logprobs=(TokenLogprob(number, -1.0, b"x"),),
        finish=finish,
        timing=Timing(total=1.0) if finish is not None else None,
    )


def test_a_slow_reader_finds_few_outputs_that_say_all():
    """Thousands of outputs of two sequences become hundreds, with every token in order."""
    ticket = EngineTicket("r", 2, lambda ticket: None)
    for number in range(3000):
        finish = Finish("length") if number == 2999 else None
        for index in range(2):
            ticket.put(news(index, number, finish))
    outputs = list(ticket.outputs())
    assert len(outputs) < 300
    for index in range(2):
        own = [output for output in outputs if output.index == index]
        assert "".join(output.text for output in own) == "".join(f"{k}." for k in range(3000))
        assert [t for output in own for t in output.token_ids] == list(range(3000))
        assert sum(len(output.logprobs) for output in own) == 3000
        assert own[-1].usage.completion_tokens == 3000
        assert [output.finish for output in own[:-1]] == [None] * (len(own) - 1)
        assert own[-1].finish == Finish("length")


def test_a_quick_reader_gets_each_output_as_it_was():
    """A reader that keeps up sees what was put, one by one."""
    ticket = EngineTicket("r", 1, lambda ticket: None)
    put = [news(0, number) for number in range(5)] + [news(0, 5, Finish("stop"))]
    for output in put:
        ticket.put(output)
    assert list(ticket.outputs()) == put
