"""The search in data folders, and downloads from a local server: whole, resumed, damaged."""

import hashlib
import http.server
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from filelock import FileLock

from turnwise.data import storage
from turnwise.data.catalogue import Download
from turnwise.data.storage import (
    DataFolders,
    cache_folder,
    checksum,
    data_folders,
    fetch,
    find_or_download,
    where_to_put,
)
from turnwise.errors import InputError


def test_the_cache_follows_the_environment(monkeypatch):
    monkeypatch.setenv("TURNWISE_CACHE", "/one")
    monkeypatch.setenv("XDG_CACHE_HOME", "/two")
    assert cache_folder() == Path("/one")
    monkeypatch.delenv("TURNWISE_CACHE")
    assert cache_folder() == Path("/two/turnwise")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path.home() / ".cache" / "turnwise"


def test_order_of_search(monkeypatch, tmp_path):
    given, variable = tmp_path / "given", tmp_path / "variable"
    given.mkdir(), variable.mkdir()
    monkeypatch.setenv("TURNWISE_DATA", str(variable))
    found = data_folders(given)
    assert found.folders == (given, variable, tmp_path / "cache")
    assert found.cache == tmp_path / "cache"


def test_a_folder_that_is_not_there(monkeypatch, tmp_path):
    with pytest.raises(InputError, match=r"data_dir = .*nowhere is not a folder"):
        data_folders(tmp_path / "nowhere")
    monkeypatch.setenv("TURNWISE_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(InputError, match=r"TURNWISE_DATA = .*nowhere is not a folder"):
        data_folders()


@pytest.mark.parametrize("variable", ["TURNWISE_CACHE", "TURNWISE_DATA"])
def test_the_home_of_nobody(monkeypatch, variable):
    monkeypatch.setenv(variable, "~nobody-of-this-name/x")
    message = rf"^{variable} = ~nobody-of-this-name/x begins with a home .* write the whole path\.$"
    with pytest.raises(InputError, match=message):
        data_folders()


def test_the_home_of_nobody_as_an_argument_or_as_the_shared_cache(monkeypatch):
    with pytest.raises(InputError, match=r"^data_dir = ~nobody-of-this-name begins with a home"):
        data_folders("~nobody-of-this-name")
    monkeypatch.delenv("TURNWISE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "~nobody-of-this-name")
    with pytest.raises(InputError, match=r"^the cache folder ~nobody-of-this-name begins with"):
        data_folders()


def test_files_are_found_together_in_the_first_folder_that_has_all(tmp_path):
    first, second = tmp_path / "1", tmp_path / "2"
    for folder, names in ((first, "a"), (second, "ab")):
        (folder / "set").mkdir(parents=True)
        for name in names:
            (folder / "set" / name).touch()
    folders = DataFolders((first, second), second)
    assert folders.find("set/a") == [first / "set" / "a"]
    assert folders.find("set/a", "set/b") == [second / "set" / "a", second / "set" / "b"]
    assert folders.find("set/c") is None


def test_a_folder_counts_before_a_form(tmp_path):
    """What the given folder has in any form is taken before another folder's best form."""
    given, other = tmp_path / "given", tmp_path / "other"
    for folder, names in ((given, ["a/1", "a/2"]), (other, ["a/a.npz", "a/1", "a/2"])):
        (folder / "a").mkdir(parents=True)
        for name in names:
            (folder / name).touch()
    found = DataFolders((given, other), tmp_path)
    assert found.find_any(["a/a.npz"], ["a/1", "a/2"]) == [given / "a/1", given / "a/2"]
    assert DataFolders((other, given), tmp_path).find_any(["a/a.npz"], ["a/1"]) == [
        other / "a/a.npz"
    ]
    assert found.find_any(["b"]) is None


def test_files_named_after_their_set_may_lie_in_the_data_folder_itself(tmp_path):
    (tmp_path / "set_64.npz").touch()
    assert DataFolders((tmp_path,), tmp_path).find("set/set_64.npz") == [tmp_path / "set_64.npz"]


def test_files_that_two_sets_share_by_name_must_lie_in_their_own_folder(tmp_path):
    """Or Fashion-MNIST would be read from the files of MNIST."""
    (tmp_path / "train-images-idx3-ubyte.gz").touch()
    folders = DataFolders((tmp_path,), tmp_path)
    assert folders.find("fashionmnist/train-images-idx3-ubyte.gz") is None


def test_the_hint_names_files_and_folder():
    hint = where_to_put(["mnist/a.gz", "mnist/b.gz"], Path("/c"))
    assert hint.startswith("put a.gz, b.gz into /c/mnist/, or set TURNWISE_DATA")


CONTENT = bytes(range(256)) * 4000
PATIENCE = 20  # seconds
MD5 = hashlib.md5(CONTENT).hexdigest()


class Handler(http.server.BaseHTTPRequestHandler):
    """Serves CONTENT: /ranges resumes, /plain does not, /cut breaks always, /flaky breaks once."""

    def do_GET(self):
        requested = self.headers.get("Range")
        self.server.ranges.append(requested)
        if self.path == "/missing":
            return self.send_error(404)
        start = int(re.fullmatch(r"bytes=(\d+)-", requested)[1]) if requested else 0
        if self.path == "/plain":
            start = 0
        if start >= len(CONTENT):
            return self.send_error(416)
        body = CONTENT[start:]
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        broken = self.path == "/cut" or (self.path == "/flaky" and len(self.server.ranges) == 1)
        self.wfile.write(body[: len(body) // 2] if broken else body)
        return None

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        running.ranges = []
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
    assert checksum(path, "md5") == MD5


def test_what_is_there_is_not_fetched_again(offer, server, tmp_path):
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "file.bin").write_text("mine")
    assert fetch(offer("/ranges"), tmp_path).read_text() == "mine"
    assert server.ranges == []


@pytest.mark.parametrize("path", ["/ranges", "/plain"])
def test_a_part_is_resumed_or_replaced(path, offer, server, tmp_path):
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "file.bin.part").write_bytes(CONTENT[:1000])
    assert fetch(offer(path), tmp_path).read_bytes() == CONTENT
    assert server.ranges == ["bytes=1000-"]


def test_a_complete_part_is_only_checked(offer, tmp_path):
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "file.bin.part").write_bytes(CONTENT)
    assert fetch(offer("/ranges"), tmp_path).read_bytes() == CONTENT


def test_a_connection_interrupted_once_is_resumed(offer, server, tmp_path):
    assert fetch(offer("/flaky"), tmp_path).read_bytes() == CONTENT
    assert server.ranges == [None, f"bytes={len(CONTENT) // 2}-"]


def test_a_connection_interrupted_always_is_reported_and_the_part_is_kept(offer, tmp_path):
    message = (
        r"could not download file\.bin .* broke after 896,000 of 1,024,000 bytes; run again to "
        r"resume\); put file\.bin into .*set/, or set TURNWISE_DATA"
    )
    with pytest.raises(InputError, match=message):
        fetch(offer("/cut"), tmp_path)
    assert [p.name for p in (tmp_path / "set").iterdir()] == ["file.bin.part"]
    assert fetch(offer("/ranges"), tmp_path).read_bytes() == CONTENT


def test_a_file_with_a_wrong_checksum_never_gets_its_final_name(offer, tmp_path):
    message = rf"file\.bin .* is damaged: its md5 must be {'0' * 32} and is {MD5}"
    with pytest.raises(InputError, match=message):
        fetch(offer("/ranges", "0" * 32), tmp_path)
    assert list((tmp_path / "set").iterdir()) == []


def test_the_server_does_not_have_it(offer, tmp_path):
    with pytest.raises(InputError, match=r"the server replied 404 Not Found\); put file\.bin"):
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


def test_waiting_processes_find_the_file(offer, server, tmp_path):
    """Four at once, as the processes of a distributed run: one downloads, all find it complete."""
    with ThreadPoolExecutor(4) as several:
        paths = set(several.map(lambda _: fetch(offer("/ranges"), tmp_path), range(4)))
    assert [path.name for path in paths] == ["file.bin"]
    assert [path.name for path in (tmp_path / "set").iterdir()] == ["file.bin"]


def test_waiting_processes_download_one_by_one_after_a_failure(offer, tmp_path, monkeypatch):
    """The first fails while two others wait: one of these downloads, the last finds the file."""
    attempts, alone, waiting = [], threading.Lock(), threading.Barrier(3)
    download = storage._download

    def watched(*arguments):
        assert alone.acquire(blocking=False), "two downloads at once"
        try:
            attempts.append(arguments)
            if len(attempts) == 1:
                waiting.wait(PATIENCE)
                raise InputError("the first fails")
            return download(*arguments)
        finally:
            alone.release()

    def come_later():
        waiting.wait(PATIENCE)
        return fetch(offer("/ranges"), tmp_path).read_bytes()

    monkeypatch.setattr(storage, "_download", watched)
    with ThreadPoolExecutor(3) as several:
        others = [several.submit(come_later) for _ in range(2)]
        with pytest.raises(InputError, match="the first fails"):
            fetch(offer("/ranges"), tmp_path)
        assert [other.result(PATIENCE) for other in others] == [CONTENT, CONTENT]
    assert len(attempts) == 2
    assert [path.name for path in (tmp_path / "set").iterdir()] == ["file.bin"]


def test_a_removed_lock_file_protects_nothing(offer, tmp_path):
    """Whoever waited for the removed file must lock the new one: filelock checks for that."""
    path, next_path = tmp_path / ".lock", tmp_path / ".next"
    first, waiting, third = FileLock(path), FileLock(path), FileLock(next_path)
    first.acquire()
    entered = threading.Event()
    thread = threading.Thread(target=lambda: (waiting.acquire(), entered.set()), daemon=True)
    thread.start()
    third.acquire(timeout=PATIENCE)
    next_path.replace(path)  # another file of the same name, which is already locked
    first.release()
    assert not entered.wait(0.3)
    third.release()
    assert entered.wait(PATIENCE)


def test_a_file_system_without_locks(offer, tmp_path, monkeypatch):
    def refuse(lock, how):
        raise OSError(37, "No locks available")

    monkeypatch.setattr("fcntl.flock", refuse)
    with pytest.raises(InputError, match=r"cannot write .*file\.bin: no locks available; .*CACHE"):
        fetch(offer("/ranges"), tmp_path)


def test_only_what_is_missing_is_fetched(offer, server, tmp_path):
    here, cache = tmp_path / "here", tmp_path / "cache"
    (here / "set").mkdir(parents=True)
    (here / "set" / "other.bin").touch()
    other = Download("http://127.0.0.1:9/x", "set/other.bin", "0" * 32)
    paths = find_or_download("toy", [other, offer("/ranges")], DataFolders((here, cache), cache))
    assert paths == [here / "set" / "other.bin", cache / "set" / "file.bin"]
    assert len(server.ranges) == 1


def test_without_a_network_all_missing_files_are_named(tmp_path):
    files = [Download("http://127.0.0.1:9/x", f"set/{name}", "0" * 32) for name in ("a", "b", "c")]
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "b").touch()
    with pytest.raises(InputError, match=r"could not download a .*; put a, c into .*set/, or set"):
        find_or_download("toy", files, DataFolders((tmp_path,), tmp_path))


def test_downloads_can_be_forbidden(offer, server, tmp_path):
    folders = DataFolders((tmp_path / "a", tmp_path / "b"), tmp_path / "b", download=False)
    with pytest.raises(InputError, match=r"toy is not in .*a, .*b and downloads are off; put file"):
        find_or_download("toy", [offer("/ranges")], folders)
    assert server.ranges == []
