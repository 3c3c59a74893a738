"""What a server with a real engine draws of itself."""

import threading
from xml.etree import ElementTree

import httpx
import pytest
from support.oracle import Asker


@pytest.mark.parametrize("room", ["radix", "sched"])
def test_drawings_under_load(server_url, pictures, room):
    """While answers run, drawings are whole: at most 80 columns, or valid XML."""

    def ask(number: int) -> None:
        asker = Asker(server_url)
        asker.chat(pictures[number % 2], f"question {number}", max_tokens=24)
        asker.close()

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    with httpx.Client(base_url=server_url, trust_env=False) as http:
        while any(thread.is_alive() for thread in threads):
            text = http.get(f"/show/{room}").text
            assert max(map(len, text.splitlines())) <= 80
            ElementTree.fromstring(http.get(f"/show/{room}?format=svg").text)
        last = http.get(f"/show/{room}").text
    assert ("picture #" if room == "radix" else "ended") in last


def test_kept_grammars_are_drawn(server_url):
    """What answers were held to is listed, with how often; and it is valid XML."""
    with httpx.Client(base_url=server_url, trust_env=False) as http:
        for _ in range(2):
            asked = {"text": "Say", "sampling_params": {"regex": "(drawn|kept) once more"}}
            assert http.post("/generate", json=asked).status_code == 200
        (line,) = (
            line.split()
            for line in http.get("/show/constrained").text.splitlines()
            if "(drawn|kept)" in line
        )
        assert line[:2] == ["regex", "2"]
        ElementTree.fromstring(http.get("/show/constrained?format=svg").text)
