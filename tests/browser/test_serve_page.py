"""The page of the service in a real browser: images are classified, hostile files refused."""

import base64
import threading

import pytest
from PIL import Image

from turnwise.data import load_dataset
from turnwise.deploy.addresses import find_address
from turnwise.deploy.classifier import ImageClassifier
from turnwise.deploy.server import ImageServer
from turnwise.models import load

PREDICTION = "document.getElementById('serve-model').innerText"
STATUS = "document.getElementById('serve-status').innerText"


@pytest.fixture(scope="module", params=["equivariant", "baseline"])
def served(request, browser, runs):
    run = runs[0] if request.param == "equivariant" else runs[1]
    model = load(run)
    classifier = ImageClassifier(request.param, model, model.classes)
    server = ImageServer(classifier, find_address("127.0.0.1"), 0)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def opened(page, served):
    page.open(f"http://127.0.0.1:{served.port}/")
    return page


@pytest.fixture
def digit(tmp_path):
    """A five as a photograph: larger than the model takes, and in colour."""
    image = Image.fromarray(load_dataset("digits").val.images[261, 0].numpy())
    image.resize((140, 140)).convert("RGB").save(tmp_path / "five.png")
    return tmp_path / "five.png"


def rotate(page, degrees):
    page.evaluate(
        f"document.getElementById('serve-angle').value = {degrees};"
        "document.getElementById('serve-angle').dispatchEvent(new Event('input'))"
    )
    page.wait_for(f"{STATUS} === 'rotated by {degrees}°'")


def percentages(page):
    """Return the percentages on the page to one decimal, because float32 may change the second."""
    shown = page.evaluate(
        "[...document.querySelectorAll('#serve-model li')].map(l => l.lastChild.innerText)"
    )
    return [round(float(text.removesuffix(" %")), 1) for text in shown]


def test_a_chosen_file_is_classified_and_rotated(opened, served, digit):
    assert opened.evaluate("document.getElementById('serve-angle').disabled")
    opened.choose_file("#serve-file", digit)
    opened.wait_for(f"{STATUS} === 'rotated by 0°'")
    before = percentages(opened)
    assert len(before) == 10 and sum(before) == pytest.approx(100, abs=1)
    rotate(opened, 90)
    same = percentages(opened) == pytest.approx(before, abs=0.11)
    assert same == (served.classifier.name == "equivariant")
    rotate(opened, 45)
    assert percentages(opened) != pytest.approx(before, abs=0.11)
    assert opened.evaluate("document.getElementById('serve-image').naturalWidth") == 28
    assert all(
        url.startswith((f"http://127.0.0.1:{served.port}/", "data:")) for url in opened.requests
    )


def drop(page, path):
    """Drop a file on the page."""
    content = base64.b64encode(path.read_bytes()).decode()
    page.evaluate(
        f"""(() => {{ const bytes = Uint8Array.from(atob("{content}"), c => c.charCodeAt(0));
        const carried = new DataTransfer(); carried.items.add(new File([bytes], "{path.name}"));
        document.getElementById("serve-drop").dispatchEvent(
          new DragEvent("drop", {{ dataTransfer: carried, cancelable: true }})); }})()"""
    )


def hold_requests(page):
    """Hold every request until `go(number)`.

    `sent` are the names of the files in them, and `shown` every status that the page showed.
    """
    page.evaluate(
        """(() => { const send = window.fetch, held = [];
        window.sent = []; window.shown = []; window.go = (number) => held[number]();
        window.fetch = async (url, request) => {
          sent.push(request.body.name ?? "small");
          await new Promise((resolve) => held.push(resolve));
          return send(url, request); };
        const line = document.getElementById("serve-status");
        new MutationObserver(() => shown.push(line.innerText)).observe(line, { childList: true });
        })()"""
    )


def test_a_dropped_file_is_classified(opened, digit):
    drop(opened, digit)
    opened.wait_for(f"{STATUS} === 'rotated by 0°'")
    assert "%" in opened.evaluate(PREDICTION)


def test_the_keyboard_rotates(opened, digit):
    opened.choose_file("#serve-file", digit)
    opened.wait_for(f"{STATUS} === 'rotated by 0°'")
    opened.evaluate("document.getElementById('serve-angle').focus()")
    opened.press("ArrowRight", 39)
    opened.wait_for(f"{STATUS} === 'rotated by 1°'")
    opened.evaluate("document.querySelector('[data-degrees=\"180\"]').focus()")
    opened.press(" ", 32)
    opened.wait_for(f"{STATUS} === 'rotated by 180°'")


def test_the_last_position_of_a_fast_slider_is_shown(opened, digit):
    opened.choose_file("#serve-file", digit)
    opened.wait_for(f"{STATUS} === 'rotated by 0°'")
    opened.evaluate(
        """(() => { const s = document.getElementById('serve-angle');
        for (let d = 1; d <= 200; d++) { s.value = d; s.dispatchEvent(new Event('input')); }
        })()"""
    )
    opened.wait_for(f"{STATUS} === 'rotated by 200°'")


def test_an_image_dropped_while_another_is_classified_replaces_it(opened, digit, tmp_path):
    """The first is sent once and never shown; from then on the second is sent."""
    other = tmp_path / "other.png"
    Image.new("L", (28, 28), 255).save(other)
    drop(opened, other)
    opened.wait_for(f"{STATUS} === 'rotated by 0°'")
    white = percentages(opened)
    hold_requests(opened)
    drop(opened, digit)
    drop(opened, other)
    opened.evaluate("go(0)")
    opened.wait_for("sent.length === 2")
    assert opened.evaluate("shown") == []
    opened.evaluate("go(1)")
    opened.wait_for("shown.length === 1")
    assert percentages(opened) == white
    opened.evaluate("document.querySelector('[data-degrees=\"90\"]').click(); go(2)")
    opened.wait_for(f"{STATUS} === 'rotated by 90°'")
    assert opened.evaluate("sent") == ["five.png", "other.png", "small"]


def test_an_image_dropped_while_another_is_refused_is_classified(browser, served, digit, tmp_path):
    browser.open(f"http://127.0.0.1:{served.port}/")
    hold_requests(browser)
    (tmp_path / "evil.png").write_bytes(b"no image")
    drop(browser, tmp_path / "evil.png")
    drop(browser, digit)
    browser.evaluate("go(0)")
    browser.wait_for("sent.length === 2")
    browser.evaluate("go(1)")
    browser.wait_for(f"{STATUS} === 'rotated by 0°'")
    assert browser.evaluate("sent") == ["evil.png", "five.png"]
    assert browser.evaluate("shown") == ["rotated by 0°"]
    assert all("422" in problem for problem in browser.problems)


def test_the_refusal_of_a_large_file_stays_while_another_is_classified(opened, digit, tmp_path):
    """The reply to the earlier request must not replace the refusal."""
    (tmp_path / "large.png").write_bytes(bytes(10_000_001))
    hold_requests(opened)
    drop(opened, digit)
    opened.choose_file("#serve-file", tmp_path / "large.png")
    opened.wait_for(f"{STATUS}.includes('10000000 is the limit')")
    opened.evaluate("go(0)")
    opened.wait_for("!state.waiting")
    assert len(opened.evaluate("shown")) == 1
    drop(opened, digit)
    opened.evaluate("go(1)")
    opened.wait_for(f"{STATUS} === 'rotated by 0°'")


def test_hostile_files_are_refused_with_a_message(browser, served, digit, tmp_path):
    """The console reports the refused request and nothing else."""
    browser.open(f"http://127.0.0.1:{served.port}/")
    (tmp_path / "evil.png").write_bytes(b"<script>window.evil = 1</script>")
    browser.choose_file("#serve-file", tmp_path / "evil.png")
    browser.wait_for(f"{STATUS}.includes('not a picture')")
    assert browser.evaluate("document.getElementById('serve-status').className") == "error"
    assert browser.evaluate(
        "window.evil === undefined && document.getElementById('serve-angle').disabled"
    )
    (tmp_path / "large.png").write_bytes(bytes(10_000_001))
    browser.choose_file("#serve-file", tmp_path / "large.png")
    browser.wait_for(f"{STATUS}.includes('10000000 is the limit')")
    browser.choose_file("#serve-file", digit)
    browser.wait_for(f"{STATUS} === 'rotated by 0°'")
    assert all("422" in problem for problem in browser.problems)
