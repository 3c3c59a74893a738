"""Sources: data addresses, the media folder, local paths, and what errors may say."""

import base64
import os

import pytest
from plan.vision.making import new_plane, noise, saved

from mmserve.core import (
    BytesSource,
    ImagePart,
    MediaConfig,
    MediaRefused,
    PathSource,
    UrlSource,
    VideoPart,
)
from mmserve.vision import Fetcher
from mmserve.vision.sources import SourceReader


def read(source, **settings) -> bytes:
    """Bytes of a source under some settings."""
    config = MediaConfig(**settings)
    return SourceReader(config, Fetcher(config)).read(source)


def refusal(source, **settings) -> MediaRefused:
    """How a source is refused."""
    with pytest.raises(MediaRefused) as caught:
        read(source, **settings)
    return caught.value


CONTENTS = [b"\xfb\xef\xbe\xff" + bytes(n) for n in range(3)]


@pytest.mark.parametrize("content", CONTENTS)
@pytest.mark.parametrize("kind", ["standard", "unpadded", "urlsafe", "escaped", "spaced"])
def test_base64_in_every_spelling(content, kind):
    """Padding may lack, the URL-safe alphabet and percent escapes are fine (O-IMG-11)."""
    text = base64.b64encode(content).decode()
    text = {
        "standard": text,
        "unpadded": text.rstrip("="),
        "urlsafe": base64.urlsafe_b64encode(content).decode(),
        "escaped": text.replace("+", "%2B").replace("/", "%2f").replace("=", "%3D"),
        "spaced": text[:3] + "\r\n " + text[3:],
    }[kind]
    assert read(UrlSource(f"data:image/png;base64,{text}")) == content


@pytest.mark.parametrize("text", ["AA*A", "AAAA=AAA", "A", "AAAA%00", "AAA===", "AAAé", "=AAA"])
def test_illegal_base64_is_refused(text):
    """A character that is not base64 is refused, never skipped (O-IMG-11)."""
    assert refusal(UrlSource(f"data:;base64,{text}")).fields["reason"] == "undecodable"


@pytest.mark.parametrize(
    ("url", "content"),
    [
        ("data:,a%20b", b"a b"),
        ("DATA:image/svg+xml;charset=utf-8,x", b"x"),
        ("data:;BASE64,QQ", b"A"),
        ("data:a/b;c=d;base64,QQ==", b"A"),
    ],
)
def test_data_addresses(url, content):
    """Data addresses may be plain, labelled and in capitals."""
    assert read(UrlSource(url)) == content


@pytest.mark.parametrize("url", ["data:image/png;base64", "data:", "data:;base64,", "data:,"])
def test_empty_data_addresses_are_refused(url):
    """A data address without content is refused."""
    assert refusal(UrlSource(url)).fields["reason"] == "undecodable"


def test_data_addresses_are_limited():
    """The limit on bytes holds for data addresses, before they are decoded too."""
    text = base64.b64encode(bytes(5000)).decode()
    assert len(read(UrlSource(f"data:;base64,{text}"), max_media_bytes=5000)) == 5000
    for limit in (4999, 100):
        error = refusal(UrlSource(f"data:;base64,{text}"), max_media_bytes=limit)
        assert error.fields["reason"] == "too_large"
    assert refusal(BytesSource(bytes(11)), max_media_bytes=10).fields["reason"] == "too_large"


@pytest.fixture
def folders(tmp_path):
    """ok/ (served) with a picture, a link out and a link inside; okay/ and other/ beside it."""
    for name in ("ok/sub", "okay", "other"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("ok/a.png", "ok/sub/b c.png", "okay/x.png", "other/secret.png"):
        (tmp_path / name).write_bytes(name.encode())
    (tmp_path / "ok/evil.png").symlink_to(tmp_path / "other/secret.png")
    (tmp_path / "ok/way").symlink_to(tmp_path / "other")
    os.mkfifo(tmp_path / "ok/pipe")
    return tmp_path


@pytest.mark.parametrize("path", ["ok/a.png", "ok/sub/b%20c.png", "ok//a.png", "ok/%61.png"])
def test_files_in_the_media_folder_are_served(folders, path):
    """Plain files inside the folder are served, their names percent-decoded once (O-SEC-03)."""
    expected = path.replace("%20", " ").replace("//", "/").replace("%61", "a").encode()
    assert (
        read(UrlSource(f"file://{folders}/{path}"), media_folder=str(folders / "ok"))
        == expected
    )


OUTSIDE = [
    "ok/../other/secret.png", "ok/%2e%2e/other/secret.png", "ok/%252e%252e/other/secret.png",
    "okay/x.png", "ok/evil.png", "ok/way/secret.png", "ok/missing.png", "other/missing.png",
    "other/secret.png", "ok", "ok/sub", "ok/", "ok/pipe", "ok/a.png%00.jpg", "ok/a.png?x",
    "ok/a.png#x", "ok/./a.png", "ok/a.png/b", "ok/\ud800.png", "ok/" + "a" * 5000,
]  # fmt: skip


@pytest.mark.parametrize("path", OUTSIDE)
def test_files_outside_the_media_folder_are_refused(folders, path):
    """Nothing leads out of the folder, and the error does not say what exists (O-SEC-03)."""
    error = refusal(UrlSource(f"file://{folders}/{path}"), media_folder=str(folders / "ok"))
    unknown = refusal(UrlSource("file:///nothing"), media_folder=str(folders / "ok"))
    assert str(error) == str(unknown)
    assert error.fields == {"reason": "fetch_forbidden"}


@pytest.mark.parametrize(
    "url", ["file://[x/a.png", "file:", "file://", "file:///\ud800", "file:\\x"]
)
def test_what_is_no_file_address_is_refused(folders, url):
    """In the same words."""
    unknown = refusal(UrlSource("file:///nothing"), media_folder=str(folders / "ok"))
    for folder in (None, str(folders / "ok"), "/"):
        assert str(refusal(UrlSource(url), media_folder=folder)) == str(unknown)


@pytest.mark.parametrize("prefix", ["file://", "file://localhost", "file:", "FILE://"])
def test_file_addresses_may_name_this_host(folders, prefix):
    """A file address may leave its host out or name this one."""
    url = f"{prefix}{folders}/ok/a.png"
    assert read(UrlSource(url), media_folder=str(folders / "ok")) == b"ok/a.png"
    refusal(UrlSource(f"file://elsewhere{folders}/ok/a.png"), media_folder=str(folders / "ok"))


def test_without_a_media_folder_no_file_is_served(folders):
    """With no folder configured, file addresses are refused (O-SEC-03)."""
    error = refusal(UrlSource(f"file://{folders}/ok/a.png"))
    assert error.fields == {"reason": "fetch_forbidden"}


def test_media_folder_may_be_reached_by_a_link(folders):
    """A folder configured through a link serves addresses in both spellings."""
    (folders / "alias").symlink_to(folders / "ok")
    for name in ("alias", "ok"):
        url = UrlSource(f"file://{folders}/{name}/a.png")
        assert read(url, media_folder=str(folders / "alias")) == b"ok/a.png"


def test_files_are_limited(folders):
    """The limit on bytes holds for files."""
    for source in (UrlSource(f"file://{folders}/ok/a.png"), PathSource(f"{folders}/ok/a.png")):
        error = refusal(source, media_folder=f"{folders}/ok", max_media_bytes=3)
        assert error.fields["reason"] == "too_large"


@pytest.mark.parametrize("kind", [ImagePart, VideoPart])
@pytest.mark.parametrize(
    "url",
    ["/etc/passwd", "./x.png", "~/.ssh/id_rsa", "C:\\x.png", "\\\\host\\share\\x.png", "", "x"],
)
def test_bare_paths_are_not_addresses(kind, url):
    """A path where an address is expected is refused, for pictures and clips (O-SEC-04)."""
    plane = new_plane(media_folder="/")
    with pytest.raises(MediaRefused, match=r"^(image|video) 2 has an address") as caught:
        plane.resolve(kind(UrlSource(url)), salt="", index=1)
    plane.close()
    assert caught.value.fields == {"reason": "fetch_forbidden", "index": 1}


def test_local_users_may_name_paths(folders):
    """A path that the program's own user names is opened (O-SEC-04)."""
    assert read(PathSource(f"{folders}/ok/evil.png")) == b"other/secret.png"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("missing.png", "No such file"),
        ("ok", "is a directory"),
        ("empty.png", "0 bytes"),
        ("ok/pipe", "not a regular file"),
        ("a\0b", "not a valid path"),
    ],
)
def test_unusable_paths_are_named(folders, name, words):
    """A path that cannot be read is refused with the path as given and why (O-BAT-05)."""
    (folders / "empty.png").touch()
    path = f"{folders}/{name}"
    error = refusal(PathSource(path))
    assert error.fields["path"] == path
    assert words in str(error)
    assert repr(path) in str(error)


def test_errors_are_short(web):
    """Two megabytes that are no picture, or a long address, give a short error (O-SEC-07)."""
    plane = new_plane()
    text = base64.b64encode(noise(700, 1000).tobytes()).decode()
    urls = [
        f"data:image/png;base64,{text}",
        f"data:image/png;base64,{text[:-8]}*",
        f"http://user:{text}@h/{text}?token=abc123",
        f"nothing:{text}",
        text,
        f"{web.url('/' + 'a' * 5000)}?token=abc123",
    ]
    for url in urls:
        with pytest.raises(MediaRefused) as caught:
            plane.resolve(ImagePart(UrlSource(url)), salt="", index=0)
        assert len(str(caught.value)) < 400
        assert text[:101] not in str(caught.value)
        assert "abc123" not in str(caught.value)
    plane.close()
    assert text[:20] not in repr(UrlSource(urls[0]))


def test_picture_by_every_path_is_one_identity(web, folders):
    """The same bytes by data, http, file, path or in memory are one picture (O-CAC-03)."""
    content = saved(noise(4, 4))
    (folders / "ok/p.png").write_bytes(content)
    web.pages["/p"] = (200, {}, content)
    plane = new_plane(allow_private_hosts=True, media_folder=str(folders / "ok"))
    sources = [
        BytesSource(content),
        PathSource(str(folders / "ok/p.png")),
        UrlSource(f"file://{folders}/ok/p.png"),
        UrlSource(web.url("/p")),
        UrlSource(f"data:;base64,{base64.b64encode(content).decode()}"),
    ]
    digests = {
        plane.resolve(ImagePart(source), salt="", index=0).items[0].digest for source in sources
    }
    plane.close()
    assert len(digests) == 1
    assert plane.counters().num_fetches == 1
