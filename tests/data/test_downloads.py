"""Downloads from a server on this machine: whole, resumed, cut short, damaged, impossible."""

import hashlib
import http.server
import re
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from turnwise.data import downloads
from turnwise.data.downloads import _alone, fetch, md5_of, obtain
from turnwise.data.entries import Download
from turnwise.data.storage import Shelves
from turnwise.errors import InputError

CONTENT = bytes(range(256)) * 4000
PATIENCE = 20  # seconds
MD5 = hashlib.md5(CONTENT).hexdigest()


class Handler(http.server.BaseHTTPRequestHandler):
    """Serves CONTENT: /ranges resumes, /plain does not, /cut breaks off, /flaky breaks off once."""

    def do_GET(self):
        asked = self.headers.get("Range")
        self.server.asked.append(asked)
        if self.path == "/missing":
            return self.send_error(404)
        start = int(re.fullmatch(r"bytes=(\d+)-", asked)[1]) if asked else 0
        if self.path == "/plain":
            start = 0
        if start >= len(CONTENT):
            return self.send_error(416)
        body = CONTENT[start:]
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        broken = self.path == "/cut" or (self.path == "/flaky" and len(self.server.asked) == 1)
        self.wfile.write(body[: len(body) // 2] if broken else body)
        return None

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        running.asked = []
        threading.Thread(target=running.serve_forever, args=(0.01,), daemon=True).start()
        yield running
        running.shutdown()


@pytest.fixture
def offer(server):
    def make(path, md5=MD5):
        return Download(f"http://127.0.0.1:{server.server_port}{path}", "set/file.bin", md5)

    return make


def test_a_whole_file(offer, tmp_path):
    path = fetch(offer("/ranges"), tmp_path)
    assert path == tmp_path / "set" / "file.bin"
    assert path.read_bytes() == CONTENT
    assert [p.name for p in path.parent.iterdir()] == ["file.bin"]
    assert md5_of(path) == MD5


def test_what_is_there_is_not_fetched_again(offer, server, tmp_path):
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "file.bin").write_text("mine")
    assert fetch(offer("/ranges"), tmp_path).read_text() == "mine"
    assert server.asked == []


@pytest.mark.parametrize("path", ["/ranges", "/plain"])
def test_a_part_is_resumed_or_replaced(path, offer, server, tmp_path):
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "file.bin.part").write_bytes(CONTENT[:1000])
    assert fetch(offer(path), tmp_path).read_bytes() == CONTENT
    assert server.asked == ["bytes=1000-"]


def test_a_complete_part_is_only_checked(offer, tmp_path):
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "file.bin.part").write_bytes(CONTENT)
    assert fetch(offer("/ranges"), tmp_path).read_bytes() == CONTENT


def test_a_connection_cut_once_is_taken_up_again(offer, server, tmp_path):
    assert fetch(offer("/flaky"), tmp_path).read_bytes() == CONTENT
    assert server.asked == [None, f"bytes={len(CONTENT) // 2}-"]


def test_a_connection_cut_always_is_reported_and_kept_for_later(offer, tmp_path):
    message = (
        r"could not download file\.bin .* cut after 896,000 of 1,024,000 bytes; run again to "
        r"resume\); put file\.bin into .*set/, or set TURNWISE_DATA"
    )
    with pytest.raises(InputError, match=message):
        fetch(offer("/cut"), tmp_path)
    assert [p.name for p in (tmp_path / "set").iterdir()] == ["file.bin.part"]
    assert fetch(offer("/ranges"), tmp_path).read_bytes() == CONTENT


def test_a_wrong_checksum_is_never_put_in_place(offer, tmp_path):
    message = rf"file\.bin .* is damaged: its md5 must be {'0' * 32} and is {MD5}"
    with pytest.raises(InputError, match=message):
        fetch(offer("/ranges", "0" * 32), tmp_path)
    assert list((tmp_path / "set").iterdir()) == []


def test_the_server_does_not_have_it(offer, tmp_path):
    with pytest.raises(InputError, match=r"the server answers 404 Not Found\); put file\.bin"):
        fetch(offer("/missing"), tmp_path)


def test_no_network(tmp_path):
    nowhere = Download("http://127.0.0.1:9/x", "set/file.bin", "0" * 32)
    with pytest.raises(
        InputError, match=r"no connection: .*\); put file\.bin into .*set/"
    ) as caught:
        fetch(nowhere, tmp_path)
    assert "\n" not in str(caught.value)


def test_a_full_disk_is_cleaned_up(offer, tmp_path):
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "file.bin.part").symlink_to("/dev/full")
    with pytest.raises(InputError, match=r"file\.bin\.part: no space left .* TURNWISE_CACHE"):
        fetch(offer("/ranges"), tmp_path)
    assert list((tmp_path / "set").iterdir()) == []


def test_a_cache_that_cannot_be_written(offer, tmp_path):
    (tmp_path / "set").touch()
    with pytest.raises(InputError, match=r"cannot write .*set .*TURNWISE_CACHE"):
        fetch(offer("/ranges"), tmp_path)


def test_a_folder_that_takes_no_files(offer, tmp_path):
    (tmp_path / "set" / ".file.bin.lock").mkdir(parents=True)
    with pytest.raises(
        InputError, match=r"cannot write .*file\.bin: is a directory; .*TURNWISE_CACHE"
    ):
        fetch(offer("/ranges"), tmp_path)


def test_those_who_waited_find_the_file(offer, server, tmp_path):
    """Four at once, as the processes of a distributed run: one fetches, all have it whole."""
    with ThreadPoolExecutor(4) as several:
        paths = set(several.map(lambda _: fetch(offer("/ranges"), tmp_path), range(4)))
    assert [path.name for path in paths] == ["file.bin"]
    assert [path.name for path in (tmp_path / "set").iterdir()] == ["file.bin"]


def test_who_waited_for_a_lock_that_is_gone_waits_again(tmp_path, monkeypatch):
    """A fails while B waits, and C comes before B goes on: C is alone, and B is next."""
    path, flock, inside = tmp_path / "file.bin", downloads.fcntl.flock, []
    b_waits, c_is_inside, b_went_on = (threading.Event() for _ in range(3))

    def watched(lock, how):
        if threading.current_thread() is not b:
            return flock(lock, how)
        if c_is_inside.is_set():
            b_went_on.set()  # it tries again
        b_waits.set()
        flock(lock, how)
        assert c_is_inside.wait(PATIENCE)
        return None

    def come():
        with _alone(path):
            inside.append("B")
            b_went_on.set()

    b = threading.Thread(target=come, daemon=True)
    monkeypatch.setattr(downloads.fcntl, "flock", watched)
    with pytest.raises(InputError, match="A fails"), _alone(path):
        b.start()
        assert b_waits.wait(PATIENCE)
        raise InputError("A fails")
    with _alone(path):
        c_is_inside.set()
        assert b_went_on.wait(PATIENCE)
        assert inside == []
    b.join(PATIENCE)
    assert inside == ["B"]
    assert list(tmp_path.iterdir()) == []


def test_a_file_system_without_locks(offer, tmp_path, monkeypatch):
    def refuse(lock, how):
        raise OSError(37, "No locks available")

    monkeypatch.setattr(downloads.fcntl, "flock", refuse)
    with pytest.raises(InputError, match=r"cannot write .*file\.bin: no locks available; .*CACHE"):
        fetch(offer("/ranges"), tmp_path)


def test_only_what_is_missing_is_fetched(offer, server, tmp_path):
    here, cache = tmp_path / "here", tmp_path / "cache"
    (here / "set").mkdir(parents=True)
    (here / "set" / "other.bin").touch()
    other = Download("http://127.0.0.1:9/x", "set/other.bin", "0" * 32)
    paths = obtain("toy", [other, offer("/ranges")], Shelves((here, cache), cache))
    assert paths == [here / "set" / "other.bin", cache / "set" / "file.bin"]
    assert len(server.asked) == 1


def test_without_a_network_all_missing_files_are_named(tmp_path):
    files = [Download("http://127.0.0.1:9/x", f"set/{name}", "0" * 32) for name in ("a", "b", "c")]
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "b").touch()
    with pytest.raises(InputError, match=r"could not download a .*; put a, c into .*set/, or set"):
        obtain("toy", files, Shelves((tmp_path,), tmp_path))


def test_downloads_can_be_forbidden(offer, server, tmp_path):
    shelf = Shelves((tmp_path / "a", tmp_path / "b"), tmp_path / "b", download=False)
    with pytest.raises(InputError, match=r"toy is not in .*a, .*b and downloads are off; put file"):
        obtain("toy", [offer("/ranges")], shelf)
    assert server.asked == []
