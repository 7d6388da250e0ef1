"""Models go to the Hub and come back, over HTTP with a server on this machine that stands for it.

The server holds one repository in memory and knows the five requests that huggingface_hub makes.
"""

import base64
import hashlib
import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import torch

import turnwise
from turnwise.deploy import hub
from turnwise.deploy.hub import from_pretrained, model_card, push_to_hub, write_repository
from turnwise.errors import InputError

SHA = "a" * 40


def small():
    torch.manual_seed(0)
    options = {"patch": 7, "width": 16, "depth": 1, "heads": 2}
    model = turnwise.create_model("orbit_vit", num_classes=2, **options).eval()
    model.classes = ("cat", "dog | cow")
    return model


def etag(content):
    return hashlib.sha1(content).hexdigest()


class Hub(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    files, seen = {}, []

    def log_message(self, *args):
        pass

    def reply(self, value, **headers):
        body = value if isinstance(value, bytes) else json.dumps(value).encode()
        self.send_response(200 if value is not None else 404)
        for name, text in {"X-Repo-Commit": SHA, **headers}.items():
            self.send_header(name, text)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"] or 0))
        self.seen.append(self.path)
        if self.path == "/api/repos/create":
            self.reply({"url": f"http://{self.headers['Host']}/me/small", "name": "me/small"})
        elif "/preupload/" in self.path:
            modes = [{"path": f["path"], "uploadMode": "regular", "shouldIgnore": False}
                     for f in json.loads(body)["files"]]  # fmt: skip
            self.reply({"files": modes})
        elif "/commit/" in self.path:
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "file":
                    content = base64.b64decode(line["value"]["content"])
                    self.files[line["value"]["path"]] = content
            url = f"http://{self.headers['Host']}/me/small/commit/{SHA}"
            self.reply({"commitUrl": url, "commitOid": SHA, "success": True})
        else:
            self.reply({})

    def do_GET(self):
        self.seen.append(self.path)
        if "/tree/" in self.path:
            self.reply([{"type": "file", "path": name, "size": len(content), "oid": etag(content)}
                        for name, content in self.files.items()])  # fmt: skip
            return
        if self.path.startswith("/api/models/me/small"):
            siblings = [{"rfilename": name} for name in self.files]
            self.reply({"id": "me/small", "sha": SHA, "private": False, "tags": [],
                        "downloads": 0, "siblings": siblings})  # fmt: skip
            return
        content = self.files.get(self.path.rpartition("/")[2].partition("?")[0])
        if content is None:
            self.reply(None)
        else:
            self.reply(content, ETag=f'"{etag(content)}"')

    do_HEAD = do_GET  # noqa: N815


@pytest.fixture
def endpoint():
    Hub.files.clear()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


def run_python(code, cache, **environment):
    """Run code in a process of its own: huggingface_hub reads the environment at import."""
    given = {**os.environ, "HF_HOME": str(cache), "HF_TOKEN": "hf_test", "HF_HUB_DISABLE_XET": "1",
             "HF_HUB_DISABLE_PROGRESS_BARS": "1", **environment}  # fmt: skip
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy"):
        given.pop(name, None)
    return subprocess.run([sys.executable, "-c", code], env=given, capture_output=True, text=True)


PUSH = """
import turnwise
turnwise.push_to_hub({folder!r}, "me/small", licence="mit")
"""
OPEN = """
import torch, turnwise
model = turnwise.from_pretrained("me/small")
print(model.classes, model(torch.ones(1, 1, 28, 28))[0, 0].item())
"""
MISSING = """
try:
    turnwise.from_pretrained("me/other")
except turnwise.InputError as error:
    print(error)
"""


def test_a_model_goes_to_the_hub_and_comes_back_also_offline(endpoint, tmp_path):
    pytest.importorskip("huggingface_hub")
    model, cache = small(), tmp_path / "cache"
    turnwise.save(model, tmp_path / "own")
    code = PUSH.format(folder=str(tmp_path / "own")) + OPEN
    online = run_python(code, cache, HF_ENDPOINT=endpoint)
    assert online.returncode == 0, online.stderr
    assert set(Hub.files) == {"README.md", "config.json", "model.safetensors"}
    expected = f"{model.classes} {model(torch.ones(1, 1, 28, 28))[0, 0].item()}"
    assert online.stdout.strip() == expected
    offline = run_python(OPEN + MISSING, cache, HF_HUB_OFFLINE="1")
    first, second = offline.stdout.splitlines()
    assert first == expected and second.startswith("me/other is no folder, and no model of the Hub")


def test_a_snapshot_is_a_model_folder(tmp_path):
    model = small()
    folder = write_repository(model, tmp_path / "snapshot", "me/small")
    opened = from_pretrained(folder)
    images = torch.rand(2, 1, 28, 28)
    assert torch.equal(opened(images), model(images))
    with pytest.raises(InputError, match="no revisions"):
        from_pretrained(folder, revision="main")


def test_the_card_states_licence_group_and_classes():
    card = model_card(small(), "me/small", "cc-by-nc-4.0")
    assert "license: cc-by-nc-4.0\n" in card and "library_name: turnwise\n" in card
    assert "| group | C4 |" in card and r"cat, dog \| cow" in card
    assert 'from_pretrained("me/small")' in card
    assert "license" not in model_card(small(), "me/small")


@pytest.mark.parametrize("name", ["me", "me/", "/small", "a/b/c", "me/sm all", "../x"])
def test_what_is_no_repository_is_refused(name):
    pytest.importorskip("huggingface_hub")
    with pytest.raises(InputError, match="is no repository; write user/name"):
        push_to_hub(small(), name)


def test_without_the_package_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(InputError, match=r"pip install turnwise\[hub\]"):
        hub.from_pretrained("me/small")
