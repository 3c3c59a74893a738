"""The web page's own files: where they are, what they may do, that they need nobody else."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import httpx
import pytest
from setuptools import Distribution
from setuptools.config.pyprojecttoml import apply_configuration
from support.echo_client import EchoClient

import mmserve.server.page
from mmserve.core import ServerConfig
from mmserve.server import RunningServer

STATIC = Path(mmserve.server.page.__file__).parent / "static"
NAMES = sorted(path.name for path in STATIC.iterdir())
ADDRESSES = ["/", *(f"/page/{name}" for name in NAMES if name != "index.html")]
ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def locked() -> Iterator[httpx.Client]:
    """A server that wants a key, asked without one."""
    config = ServerConfig(port=0, api_key="sesame")
    with (
        RunningServer(EchoClient(), config) as server,
        httpx.Client(base_url=server.url) as http,
    ):
        yield http


class Tags(HTMLParser):
    """Tags with their attributes, and text inside scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.inside: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Changes: the tags."""
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        """Changes: what stands inside."""
        if self.tags and self.tags[-1][0] in ("script", "style") and data.strip():
            self.inside.append(data)


@pytest.mark.parametrize("address", ADDRESSES)
def test_the_page_needs_no_key(locked: httpx.Client, address: str) -> None:
    """Each file answers as its kind, with a policy that lets nothing foreign in."""
    response = locked.get(address)
    assert response.status_code == 200
    kinds = {
        "html": "text/html",
        "css": "text/css",
        "js": "text/javascript",
        "svg": "image/svg",
    }
    kind = kinds["html" if address == "/" else address.rpartition(".")[2]]
    assert response.headers["Content-Type"].startswith(kind)
    policy = response.headers["Content-Security-Policy"].split("; ")
    assert "default-src 'none'" in policy
    assert "script-src 'self'" in policy
    assert not re.search("unsafe|https?:", " ".join(policy))
    assert response.headers["X-Content-Type-Options"] == "nosniff"
    assert response.headers["Referrer-Policy"] == "no-referrer"


def test_what_the_page_asks_needs_the_key(locked: httpx.Client) -> None:
    """The tree, the model's name and rendering tell nothing to strangers."""
    for path in ("/show/radix.json", "/v1/models", "/server_info", "/page/", "/page/x.js"):
        assert locked.get(path).status_code == 401
    assert locked.post("/v1/render", json={}).status_code == 401
    assert locked.post("/v1/files").status_code == 401


def test_the_page_can_be_turned_off() -> None:
    """Then its files are not found, and ask for the key like everything else."""
    config = ServerConfig(port=0, is_page_served=False, api_key="sesame")
    with (
        RunningServer(EchoClient(), config) as server,
        httpx.Client(base_url=server.url) as http,
    ):
        for address in ADDRESSES:
            assert http.get(address).status_code == 401
            assert http.get(address, headers={"x-api-key": "sesame"}).status_code == 404


def test_the_page_takes_nothing(site) -> None:
    """Only reading is served; a HEAD has the headers alone."""
    site.refused(site.http.post("/"), 405)
    head = site.http.head("/")
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["Content-Security-Policy"]


def test_nothing_is_inline() -> None:
    """No script, style or handler stands in the page itself, so the policy can forbid it."""
    page = Tags((STATIC / "index.html").read_text())
    assert page.inside == []
    names = {name for _, attributes in page.tags for name in attributes}
    assert not {name for name in names if name.startswith("on") or name == "style"}
    assert "style" not in {tag for tag, _ in page.tags}


def test_every_file_that_is_named_is_there(site) -> None:
    """Sources, styles and imported modules are files of the page, at relative addresses."""
    page = Tags((STATIC / "index.html").read_text())
    named = {
        attributes[name]
        for _, attributes in page.tags
        for name in ("src", "href")
        if name in attributes and not str(attributes[name]).startswith("#")
    }
    for path in STATIC.glob("*.js"):
        named |= {f"page/{name}" for name in re.findall(r'from "\./([^"]+)"', path.read_text())}
    assert len(named) >= 8
    for address in named:
        assert site.http.get(f"/{address}").status_code == 200, address


@pytest.mark.parametrize("name", NAMES)
def test_files_name_no_other_host(name: str) -> None:
    """The page works without a network, and builds no markup out of texts."""
    text = (STATIC / name).read_text()
    assert re.findall(r"https?://(?!www\.w3\.org/2000/svg)", text) == []
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", text)


def test_every_field_has_a_label() -> None:
    """Screen readers can name each control of the form."""
    page = Tags((STATIC / "index.html").read_text())
    labelled = {attributes.get("for") for tag, attributes in page.tags if tag == "label"}
    fields = {
        attributes["id"]
        for tag, attributes in page.tags
        if tag in ("input", "textarea", "select")
    }
    assert fields <= labelled
    assert len(fields) >= 7


def test_every_element_that_is_asked_for_is_there() -> None:
    """Modules look elements up by id; the page has each of them once."""
    ids = [a["id"] for _, a in Tags((STATIC / "index.html").read_text()).tags if "id" in a]
    assert len(set(ids)) == len(ids)
    asked = {
        name
        for path in STATIC.glob("*.js")
        for name in re.findall(r'find\("([\w-]+)"\)', path.read_text())
    }
    assert asked
    assert asked <= set(ids)


def test_the_files_are_in_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rules of pyproject.toml put each of them into a wheel."""
    monkeypatch.chdir(ROOT)
    rules = Distribution()
    apply_configuration(rules, "pyproject.toml")
    build = rules.get_command_obj("build_py")
    build.finalize_options()
    build.manifest_files = {}
    packed = {Path(path) for path in build.find_data_files("mmserve", "mmserve")}
    folder = STATIC.relative_to(ROOT)
    assert {folder / name for name in NAMES} <= packed
