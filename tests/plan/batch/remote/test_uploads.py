"""Files sent to a server: once, as long as they are used, and not where there is no route."""

import threading
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from mmserve.batch.remote.uploads import LEAST_BYTES, Uploads
from mmserve.core import BackendFailed, MediaRefused


class FakeServer:
    """Counts what it is sent; answers with `status`."""

    def __init__(self, status: int = 200) -> None:
        self.status = status
        self.sent: list[bytes] = []
        self.deleted: list[str] = []
        self.gate = threading.Event()
        self.gate.set()
        self.uploads = Uploads(self.post, self.delete, (httpx.HTTPError,))

    def post(self, path, files, data):
        """Read the file, once the gate is open."""
        self.gate.wait(5)
        self.sent.append(files["file"][1].read())
        return httpx.Response(self.status, json={"id": f"file-{len(self.sent)}"})

    def delete(self, path, timeout):
        """Remember the id."""
        self.deleted.append(path.removeprefix("/v1/files/"))
        return httpx.Response(200)


@pytest.fixture
def clip(tmp_path):
    """A file that is worth an upload."""
    return written(tmp_path, "a.mp4")


def written(folder, name: str) -> str:
    """The path of a new file, whose content is its name many times."""
    path = folder / name
    path.write_bytes(name.encode() * LEAST_BYTES)
    return str(path)


def test_threads_that_need_one_file_send_it_once(clip):
    """Eight questions about a clip wait for one upload and name the same id."""
    server = FakeServer()
    server.gate.clear()
    with ThreadPoolExecutor(8) as pool:
        held = [pool.submit(server.uploads.hold, clip) for _ in range(8)]
        server.gate.set()
        names = {one.result().name.result() for one in held}
    assert (names, len(server.sent), server.uploads.num_files) == ({"file-1"}, 1, 1)


def test_files_in_use_stay_and_idle_ones_leave(tmp_path):
    """Beyond the last four, what nobody uses is deleted; at the end all is."""
    server = FakeServer()
    used = server.uploads.hold(written(tmp_path, "used.mp4"))
    for n in range(6):
        server.uploads.release(server.uploads.hold(written(tmp_path, f"{n}.mp4")))
    assert server.deleted == ["file-2", "file-3"]
    server.uploads.release(used)
    server.uploads.close()
    assert sorted(server.deleted) == [f"file-{n}" for n in range(1, 8)]


def test_a_changed_file_is_another(tmp_path):
    """A file that was written again is sent again."""
    server = FakeServer()
    server.uploads.hold(written(tmp_path, "a.mp4"))
    (tmp_path / "a.mp4").write_bytes(b"new" * LEAST_BYTES)
    server.uploads.hold(str(tmp_path / "a.mp4"))
    assert len(server.sent) == 2


@pytest.mark.parametrize("status", [404, 405, 501])
def test_without_the_route_files_go_inline(tmp_path, status):
    """The route is tried once; from then on nothing is sent."""
    server = FakeServer(status)
    names = [
        server.uploads.hold(written(tmp_path, name)).name.result() for name in ("a", "b", "c")
    ]
    assert (names, len(server.sent)) == ([None] * 3, 1)


def test_a_failed_upload_is_not_remembered(clip):
    """Whoever asks next tries again."""
    server = FakeServer(500)
    with pytest.raises(BackendFailed):
        server.uploads.hold(clip)
    server.status = 200
    assert server.uploads.hold(clip).name.result() == "file-2"


def test_unreadable_files_are_refused(tmp_path):
    """A missing file is the row's fault, and nothing is sent."""
    server = FakeServer()
    with pytest.raises(MediaRefused, match=r"no\.mp4"):
        server.uploads.hold(str(tmp_path / "no.mp4"))
    assert server.sent == []
