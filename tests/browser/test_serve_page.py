"""The local page in a real browser: a dropped picture is classified, a hostile one refused."""

import base64
import threading

import pytest
from PIL import Image

from turnwise.data import load_dataset
from turnwise.deploy.server import Answerer, ImageServer
from turnwise.models import load

VOICE = "document.getElementById('serve-voice').innerText"
TOLD = "document.getElementById('serve-told').innerText"


@pytest.fixture(scope="module", params=["equivariant", "ordinary"])
def served(request, browser, runs):
    run = runs[0] if request.param == "equivariant" else runs[1]
    model = load(run)
    server = ImageServer(Answerer(request.param, model, model.classes), "127.0.0.1", 0)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def opened(page, served):
    page.open(f"http://127.0.0.1:{served.port}/")
    return page


@pytest.fixture
def digit(tmp_path):
    """A five, as a photograph: larger, in colour, and not square."""
    image = Image.fromarray(load_dataset("digits").val.images[261, 0].numpy())
    image.resize((140, 140)).convert("RGB").save(tmp_path / "five.png")
    return tmp_path / "five.png"


def turn(page, degrees):
    page.ask(
        f"document.getElementById('serve-angle').value = {degrees};"
        "document.getElementById('serve-angle').dispatchEvent(new Event('input'))"
    )
    page.wait_for(f"{TOLD} === 'turned by {degrees}°'")


def numbers(page):
    """What stands on the page, to a tenth of a per cent: single precision is not to be seen."""
    shown = page.ask(
        "[...document.querySelectorAll('#serve-voice li')].map(l => l.lastChild.innerText)"
    )
    return [round(float(text.removesuffix(" %")), 1) for text in shown]


def test_a_chosen_file_is_classified_and_turned(opened, served, digit):
    assert opened.ask("document.getElementById('serve-angle').disabled")
    opened.choose_file("#serve-file", digit)
    opened.wait_for(f"{TOLD} === 'turned by 0°'")
    before = numbers(opened)
    assert len(before) == 10 and sum(before) == pytest.approx(100, abs=1)
    turn(opened, 90)
    same = numbers(opened) == pytest.approx(before, abs=0.11)
    assert same == (served.answerer.name == "equivariant")
    turn(opened, 45)
    assert numbers(opened) != pytest.approx(before, abs=0.11)
    assert opened.ask("document.getElementById('serve-seen').naturalWidth") == 28
    assert all(
        url.startswith((f"http://127.0.0.1:{served.port}/", "data:")) for url in opened.requests
    )


def let_fall(page, path):
    """Drop the file at `path` on the page."""
    content = base64.b64encode(path.read_bytes()).decode()
    page.ask(
        f"""(() => {{ const bytes = Uint8Array.from(atob("{content}"), c => c.charCodeAt(0));
        const carried = new DataTransfer(); carried.items.add(new File([bytes], "{path.name}"));
        document.getElementById("serve-drop").dispatchEvent(
          new DragEvent("drop", {{ dataTransfer: carried, cancelable: true }})); }})()"""
    )


def hold_questions(page):
    """From now on, `sent` are the names of what was sent; it goes on its way with `go(number)`.

    `shown` is whatever the page told the person, in order.
    """
    page.ask(
        """(() => { const asking = window.fetch, held = [];
        window.sent = []; window.shown = []; window.go = (number) => held[number]();
        window.fetch = async (address, question) => {
          sent.push(question.body.name ?? "small");
          await new Promise((resolve) => held.push(resolve));
          return asking(address, question); };
        const told = document.getElementById("serve-told");
        new MutationObserver(() => shown.push(told.innerText)).observe(told, { childList: true });
        })()"""
    )


def test_a_dropped_file_is_classified(opened, digit):
    let_fall(opened, digit)
    opened.wait_for(f"{TOLD} === 'turned by 0°'")
    assert "%" in opened.ask(VOICE)


def test_the_keyboard_turns(opened, digit):
    opened.choose_file("#serve-file", digit)
    opened.wait_for(f"{TOLD} === 'turned by 0°'")
    opened.ask("document.getElementById('serve-angle').focus()")
    opened.press("ArrowRight", 39)
    opened.wait_for(f"{TOLD} === 'turned by 1°'")
    opened.ask("document.querySelector('[data-degrees=\"180\"]').focus()")
    opened.press(" ", 32)
    opened.wait_for(f"{TOLD} === 'turned by 180°'")


def test_a_fast_slider_ends_where_it_stands(opened, digit):
    opened.choose_file("#serve-file", digit)
    opened.wait_for(f"{TOLD} === 'turned by 0°'")
    opened.ask(
        """(() => { const s = document.getElementById('serve-angle');
        for (let d = 1; d <= 200; d++) { s.value = d; s.dispatchEvent(new Event('input')); }
        })()"""
    )
    opened.wait_for(f"{TOLD} === 'turned by 200°'")


def test_a_picture_dropped_while_another_is_answered(opened, digit, tmp_path):
    """The first is sent once and never shown; from then on the second is asked about."""
    other = tmp_path / "other.png"
    Image.new("L", (28, 28), 255).save(other)
    let_fall(opened, other)
    opened.wait_for(f"{TOLD} === 'turned by 0°'")
    white = numbers(opened)
    hold_questions(opened)
    let_fall(opened, digit)
    let_fall(opened, other)
    opened.ask("go(0)")
    opened.wait_for("sent.length === 2")
    assert opened.ask("shown") == []
    opened.ask("go(1)")
    opened.wait_for("shown.length === 1")
    assert numbers(opened) == white
    opened.ask("document.querySelector('[data-degrees=\"90\"]').click(); go(2)")
    opened.wait_for(f"{TOLD} === 'turned by 90°'")
    assert opened.ask("sent") == ["five.png", "other.png", "small"]


def test_a_picture_dropped_while_another_is_refused(browser, served, digit, tmp_path):
    browser.open(f"http://127.0.0.1:{served.port}/")
    hold_questions(browser)
    (tmp_path / "evil.png").write_bytes(b"no picture")
    let_fall(browser, tmp_path / "evil.png")
    let_fall(browser, digit)
    browser.ask("go(0)")
    browser.wait_for("sent.length === 2")
    browser.ask("go(1)")
    browser.wait_for(f"{TOLD} === 'turned by 0°'")
    assert browser.ask("sent") == ["evil.png", "five.png"]
    assert browser.ask("shown") == ["turned by 0°"]
    assert all("422" in words for words in browser.complaints)


def test_a_file_too_large_dropped_while_another_is_answered(opened, digit, tmp_path):
    """The refusal stays to be read: the answer to the picture before does not cover it."""
    (tmp_path / "large.png").write_bytes(bytes(10_000_001))
    hold_questions(opened)
    let_fall(opened, digit)
    opened.choose_file("#serve-file", tmp_path / "large.png")
    opened.wait_for(f"{TOLD}.includes('10000000 is the limit')")
    opened.ask("go(0)")
    opened.wait_for("!asked.waiting")
    assert len(opened.ask("shown")) == 1
    let_fall(opened, digit)
    opened.ask("go(1)")
    opened.wait_for(f"{TOLD} === 'turned by 0°'")


def test_hostile_files_are_refused_in_words(browser, served, digit, tmp_path):
    """The console tells the refused request; nothing else is complained about."""
    browser.open(f"http://127.0.0.1:{served.port}/")
    (tmp_path / "evil.png").write_bytes(b"<script>window.evil = 1</script>")
    browser.choose_file("#serve-file", tmp_path / "evil.png")
    browser.wait_for(f"{TOLD}.includes('not a picture')")
    assert browser.ask("document.getElementById('serve-told').className") == "refused"
    assert browser.ask(
        "window.evil === undefined && document.getElementById('serve-angle').disabled"
    )
    (tmp_path / "large.png").write_bytes(bytes(10_000_001))
    browser.choose_file("#serve-file", tmp_path / "large.png")
    browser.wait_for(f"{TOLD}.includes('10000000 is the limit')")
    browser.choose_file("#serve-file", digit)
    browser.wait_for(f"{TOLD} === 'turned by 0°'")
    assert all("422" in words for words in browser.complaints)
