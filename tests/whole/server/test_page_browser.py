"""The web page in a browser: as people use it, with the mouse, the keyboard, and on a phone."""

from __future__ import annotations

import base64
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from mmserve.cli.samples import load_samples
from mmserve.core import ServerConfig
from mmserve.engine import Engine
from mmserve.server import RunningServer

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = shutil.which("chromium")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="Debian's chromium is not installed")
expect = playwright.expect

SCENE, CLIP = (str(sample.path) for sample in load_samples())
QUESTIONS = ("What is the colour of the circle?", "How many shapes are there?", "Which number?")
WAIT_MS = 60_000
LONG = "[ab]{1900}"
expect.set_options(timeout=WAIT_MS)


@pytest.fixture(scope="module")
def seeing() -> Iterator[Engine]:
    """The embedded model."""
    with Engine(model="tabletop", threads=1) as engine:
        yield engine


@pytest.fixture(scope="module")
def url(seeing: Engine) -> Iterator[str]:
    """A server without a key."""
    with RunningServer(seeing, ServerConfig(port=0)) as server:
        yield server.url


@pytest.fixture(scope="module")
def browser() -> Iterator[playwright.Browser]:
    """Debian's Chromium, without a window."""
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        yield browser
        browser.close()


@contextmanager
def opened(
    browser: playwright.Browser, address: str, *, complaints: int = 0, **options: object
) -> Iterator[playwright.Page]:
    """The page at an address; the browser may complain of so many refusals, and of nothing."""
    context = browser.new_context(**options)
    context.set_default_timeout(WAIT_MS)
    page = context.new_page()
    said: list[str] = []
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on(
        "console", lambda m: said.append(m.text) if m.type in ("error", "warning") else None
    )
    page.goto(address)
    yield page
    context.close()
    foreign = [words for words in said if "responded with a status of 4" not in words]
    assert foreign == []
    assert len(said) == complaints


@pytest.fixture
def page(browser: playwright.Browser, url: str) -> Iterator[playwright.Page]:
    """The page, connected, over a cache that holds nothing."""
    assert httpx.post(f"{url}/flush_cache?timeout=60", timeout=70).status_code == 200
    with opened(browser, url) as page:
        expect(page.locator("#model")).to_have_text("tabletop")
        yield page


def ask(page: playwright.Page, *questions: str, files: tuple[str, ...] = ()) -> None:
    """Ask, and wait for all answers."""
    if files:
        page.get_by_label("Choose pictures or clips").set_input_files(files)
    page.get_by_label("Questions, one a line").fill("\n".join(questions))
    page.get_by_role("button", name=re.compile("^Ask")).click()
    expect(page.get_by_role("status").first).to_have_text(
        re.compile("(answer is|answers are) there")
    )


def cached(page: playwright.Page) -> list[int]:
    """Tokens from the cache, answer by answer."""
    return [int(words) for words in page.locator(".cached-tokens").all_inner_texts()]


def spread(page: playwright.Page) -> tuple[int, int]:
    """Pixels that the page is wide, and that the window is."""
    wide = page.evaluate("[document.documentElement.scrollWidth, window.innerWidth]")
    return wide[0], wide[1]


def test_three_questions_at_once(page: playwright.Page) -> None:
    """Answers stand side by side with counts and stages; asked again, more is cached."""
    ask(page, *QUESTIONS, files=(SCENE, CLIP))
    cards = page.get_by_role("article")
    expect(cards).to_have_count(3)
    for text in cards.locator(".text").all_inner_texts():
        assert text.strip()
    first = cached(page)
    assert min(first) == 0
    expect(cards.first).to_contain_text("36 image tokens, 180 video tokens")
    expect(cards.nth(first.index(0))).to_contain_text(re.compile(r"encode [\d.]+ ms"))
    expect(cards.first).to_contain_text(re.compile(r"prefill [\d.]+ ms"))
    tops = {round(card.bounding_box()["y"]) for card in cards.all()[:2]}
    assert len(tops) == 1
    ask(page, *QUESTIONS)
    second = cached(page)
    assert all(now > 200 for now in second)
    assert second[first.index(0)] > 0
    expect(cards.nth(first.index(0))).to_contain_text("(0 before)")


def test_media_are_uploaded_once(page: playwright.Page, url: str) -> None:
    """Requests name them by id; removing one forgets the file."""
    sent: list[str] = []
    page.on("request", lambda request: sent.append(f"{request.method} {request.url}"))
    ask(page, "One?", "Two?", files=(SCENE,))
    ask(page, "Three?")
    assert sent.count(f"POST {url}/v1/files") == 1
    page.get_by_role("button", name="Remove scene.png").click()
    expect(page.locator("#media li")).to_have_count(0)
    assert page.evaluate("document.activeElement.id") == "files"


def test_the_tree_is_drawn_with_own_pictures(page: playwright.Page, url: str) -> None:
    """What this page sent shows its pictures; what others sent does not."""
    ask(page, *QUESTIONS, files=(SCENE,))
    tree = page.get_by_role("group", name="Radix tree")
    tree.scroll_into_view_if_needed()
    expect(tree.locator("img")).to_have_count(1)
    expect(tree).to_contain_text("hits")
    expect(page.locator("#slots-text")).to_contain_text(re.compile(r"[1-9]\d* kept"))
    expect(page.locator("#features-text")).to_contain_text("36 kept")
    form = {"file": Path(CLIP).read_bytes(), "purpose": (None, "vision")}
    with httpx.Client(base_url=url, timeout=60) as http:
        named = http.post("/v1/files", files=form).json()["id"]
        content = [{"type": "video_url", "video_url": {"url": named}}]
        body = {"messages": [{"role": "user", "content": content}], "max_tokens": 2}
        assert http.post("/v1/chat/completions", json=body).status_code == 200
    expect(tree.locator(".other")).to_have_count(5)
    expect(tree.locator("img")).to_have_count(1)


def test_the_tree_is_asked_for_only_while_it_shows(page: playwright.Page) -> None:
    """Out of the window it rests."""
    page.set_viewport_size({"width": 1280, "height": 160})
    told: list[str] = []
    page.on("request", lambda request: "radix" in request.url and told.append(request.url))
    page.evaluate("window.scrollTo(0, 0)")
    page.wait_for_timeout(1500)
    rested = len(told)
    page.wait_for_timeout(2500)
    assert len(told) == rested
    with page.expect_request(re.compile("radix")):
        page.locator("#live-title").scroll_into_view_if_needed()


def test_what_the_model_sees(page: playwright.Page) -> None:
    """The prompt token by token, with the frames that were sampled, and as text."""
    page.get_by_label("Choose pictures or clips").set_input_files((SCENE, CLIP))
    page.get_by_label("Questions, one a line").fill("What moves?")
    page.get_by_role("button", name="Show the prompt").click()
    seen = page.locator("#seen")
    expect(seen.locator("figure")).to_have_count(6)
    expect(seen.get_by_role("img", name="frame at 0.50 s")).to_be_visible()
    expect(seen.locator("figcaption").first).to_contain_text("288 \u00d7 288 pixels")
    expect(seen).to_contain_text("What moves?")
    widths = page.evaluate(
        "[...document.querySelectorAll('#seen img')].map(i => i.naturalWidth)"
    )
    assert min(widths) > 100
    seen.get_by_text("Template text").click()
    expect(seen.locator("pre").first).to_contain_text("<|user|><image>frame 1:<image>")


@pytest.mark.parametrize("way", ["paste", "drop"])
def test_media_may_be_pasted_and_dropped(page: playwright.Page, way: str) -> None:
    """As good as chosen: shown, uploaded, and asked about."""
    content = base64.b64encode(Path(SCENE).read_bytes()).decode()
    page.evaluate(
        """([way, content]) => {
            const bytes = Uint8Array.from(atob(content), (sign) => sign.charCodeAt(0));
            const held = new DataTransfer();
            held.items.add(new File([bytes], "held.png", { type: "image/png" }));
            const place = way === "drop" ? document.getElementById("drop") : document;
            place.dispatchEvent(way === "drop"
                ? new DragEvent("drop", { dataTransfer: held })
                : new ClipboardEvent("paste", { clipboardData: held }));
        }""",
        [way, content],
    )
    expect(page.get_by_role("list", name="Media to ask about")).to_contain_text("held.png")
    ask(page, "What number is written?")
    expect(page.get_by_role("article")).to_contain_text("36 image tokens")


def test_more_questions_than_connections(page: playwright.Page) -> None:
    """All are answered, though a browser opens only six connections."""
    ask(page, *(f"Is it number {number}?" for number in range(9)), files=(SCENE,))
    expect(page.locator("#status")).to_have_text("9 answers are there")
    expect(page.locator(".cached-tokens")).to_have_count(9)


def test_a_file_that_is_gone_is_uploaded_again(browser: playwright.Browser, url: str) -> None:
    """The refusal says so, and the next round brings it back."""
    with opened(browser, url, complaints=2) as page, httpx.Client(base_url=url) as http:
        ask(page, "One?", files=(SCENE,))
        for file in http.get("/v1/files").json()["data"]:
            http.delete(f"/v1/files/{file['id']}")
        page.get_by_role("button", name="Ask").click()
        refusal = page.get_by_role("article").locator(".error")
        expect(refusal.locator(".hint")).to_have_text("upload it again with POST /v1/files")
        expect(page.locator("#media .state")).to_have_text("to be uploaded")
        ask(page, "One?")
        expect(page.locator("#status")).to_have_text("1 answer is there")
        expect(page.get_by_role("article")).to_contain_text("36 image tokens")


def test_the_tree_is_the_operators(browser: playwright.Browser, seeing: Engine) -> None:
    """With a client's key all but the tree works, and it says why; another key brings it."""
    config = ServerConfig(port=0, client_keys=(("bob", "sk-bob"),), admin_key="sk-admin")
    with (
        RunningServer(seeing, config) as server,
        opened(browser, server.url, complaints=5) as page,
    ):
        page.locator("#tree-text").scroll_into_view_if_needed()
        for key, words in (
            ("sk-bob", "operator"),
            ("sk-admin", "evicted"),
            ("sk-bob", "operator"),
        ):
            page.get_by_label("API key").fill(key)
            page.keyboard.press("Enter")
            page.locator("#tree-text").scroll_into_view_if_needed()
            expect(page.locator("#tree-text")).to_contain_text(words)
            shown = 0 if key == "sk-bob" else 1
            expect(page.locator("#tree > ul")).to_have_count(shown)
            ask(page, "One?")
            expect(page.locator("#status")).to_have_text("1 answer is there")


def test_stop_aborts(page: playwright.Page, url: str) -> None:
    """The answers end, here and on the server; those that came stay."""
    page.get_by_text("Options", exact=True).click()
    page.get_by_label("Form of the answers").select_option("regex")
    page.get_by_role("textbox", name="Regular expression").fill(LONG)
    page.get_by_label("Most tokens").fill("1900")
    page.get_by_label("Questions, one a line").fill("First?\nSecond?")
    page.get_by_role("button", name="Ask 2 questions").click()
    expect(page.locator(".card .text").first).to_contain_text("a")
    page.get_by_role("button", name="Stop").click()
    expect(page.locator("#status")).to_contain_text("2 stopped")
    expect(page.get_by_role("article").first).to_contain_text("stopped")
    expect(page.get_by_role("button", name="Stop")).to_be_disabled()
    page.locator("#live-title").scroll_into_view_if_needed()
    expect(page.locator("#running")).to_have_text("0")
    assert httpx.get(f"{url}/server_info").json()["counters"]["running"] == 0


def test_refusals_are_told_with_the_way_out(browser: playwright.Browser, url: str) -> None:
    """A form that is no JSON is told before anything is sent, others as the server says it."""
    with opened(browser, url, complaints=4) as page:
        page.get_by_role("button", name="Ask").click()
        expect(page.get_by_role("alert")).to_have_text("write a question first")
        page.get_by_label("Questions, one a line").fill("Why?")
        page.get_by_text("Options", exact=True).click()
        page.get_by_label("Form of the answers").select_option("json_schema")
        page.get_by_role("textbox", name="JSON schema").fill("{")
        page.get_by_role("button", name="Ask").click()
        expect(page.get_by_role("alert")).to_contain_text("the schema is not JSON")
        page.get_by_label("Form of the answers").select_option("regex")
        page.get_by_role("textbox", name="Regular expression").fill("(a|b")
        page.get_by_role("button", name="Ask").click()
        refusal = page.get_by_role("article").locator(".error")
        expect(refusal).to_contain_text("(regex)")
        expect(page.locator("#status")).to_have_text("0 answers are there, 1 refused")
        page.get_by_label("Form of the answers").select_option("free")
        page.get_by_label("Questions, one a line").fill("word " * 3000)
        page.keyboard.press("Control+Enter")
        expect(refusal.locator(".hint")).to_have_text("send less text")


def test_choices_hold_the_answer(page: playwright.Page) -> None:
    """One of the lines is the answer."""
    page.get_by_text("Options", exact=True).click()
    page.get_by_label("Form of the answers").select_option("choices")
    page.get_by_role("textbox", name="Choices, one a line").fill("perhaps\nnever")
    ask(page, "Will it rain?")
    expect(page.locator(".card .text")).to_have_text(re.compile("^(perhaps|never)$"))


def test_the_keyboard_is_enough(page: playwright.Page) -> None:
    """Choose, write, ask, look, and take away, without a mouse and with the focus in sight."""
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the questions")).to_be_focused()
    page.keyboard.press("Tab")
    expect(page.get_by_label("API key")).to_be_focused()
    page.keyboard.press("Tab")
    expect(page.get_by_label("Choose pictures or clips")).to_be_focused()
    ring = "getComputedStyle(document.getElementById('drop')).outlineStyle"
    assert page.evaluate(ring) == "solid"
    with page.expect_file_chooser() as chosen:
        page.keyboard.press("Space")
    chosen.value.set_files(SCENE)
    page.keyboard.press("Tab")
    expect(page.get_by_role("button", name="Remove scene.png")).to_be_focused()
    page.keyboard.press("Tab")
    page.keyboard.type("Which shapes?")
    page.keyboard.press("Enter")
    page.keyboard.type("Which colours?")
    page.keyboard.press("Control+Enter")
    expect(page.locator("#status")).to_have_text("2 answers are there")
    names = ("Options", "Ask 2 questions", "Radix tree", "Show the prompt")
    for name in names:
        page.keyboard.press("Tab")
        focused = (
            "[document.activeElement.innerText, document.activeElement.ariaLabel].join(' ')"
        )
        assert name in page.evaluate(focused)
        style = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert style == "solid", name
    page.keyboard.press("Enter")
    expect(page.locator("#seen figure")).to_have_count(1)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 768, 1280])
def test_it_fits_every_window(
    browser: playwright.Browser, url: str, scheme: str, width: int
) -> None:
    """Nothing scrolls sideways, and colours follow the system's."""
    size = {"width": width, "height": 740}
    with opened(browser, url, viewport=size, color_scheme=scheme) as page:
        ask(page, *QUESTIONS, "A_very_long_word_" * 20, files=(SCENE, CLIP))
        page.get_by_role("button", name="Show the prompt").click()
        expect(page.locator("#seen figure")).to_have_count(6)
        page.locator("#live-title").scroll_into_view_if_needed()
        expect(page.locator("#tree img").first).to_be_visible()
        page.get_by_text("Options", exact=True).click()
        assert spread(page)[0] <= width
        colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
        light = sum(map(int, re.findall(r"\d+", colour)[:3])) / 3
        assert (light > 128) is (scheme == "light")


def test_motion_can_be_reduced(browser: playwright.Browser, url: str) -> None:
    """What pulses while an answer comes stands still for those who ask for it."""
    pulse = "getComputedStyle(document.querySelector('.card .text'), '::after').animationName"
    for wish, name in (("no-preference", "pulse"), ("reduce", "none")):
        with opened(browser, url, reduced_motion=wish) as page:
            page.get_by_text("Options", exact=True).click()
            page.get_by_label("Form of the answers").select_option("regex")
            page.get_by_role("textbox", name="Regular expression").fill(LONG)
            page.get_by_label("Most tokens").fill("1900")
            page.get_by_label("Questions, one a line").fill("Long?")
            page.get_by_role("button", name="Ask").click()
            expect(page.locator(".card .text")).to_contain_text("a")
            assert page.evaluate(pulse) == name
            page.keyboard.press("Escape")
            expect(page.locator("#status")).to_contain_text("1 stopped")


def test_the_key_stays_in_its_tab(browser: playwright.Browser, seeing: Engine) -> None:
    """Without it the page says so; with it all works, and nothing outlives the tab."""
    config = ServerConfig(port=0, api_key="sesame")
    with (
        RunningServer(seeing, config) as server,
        opened(browser, server.url, complaints=3) as page,
    ):
        expect(page.get_by_role("alert")).to_contain_text("the API key is missing or wrong")
        expect(page.get_by_label("API key")).to_be_focused()
        page.keyboard.type("sesame")
        page.keyboard.press("Enter")
        expect(page.locator("#model")).to_have_text("tabletop")
        expect(page.get_by_role("alert")).to_be_hidden()
        ask(page, "What is it?", files=(SCENE,))
        kept = page.evaluate("[Object.values(sessionStorage), localStorage.length]")
        assert kept == [["sesame"], 0]
        assert page.context.cookies() == []
