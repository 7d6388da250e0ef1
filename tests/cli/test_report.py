"""turnwise report: one file, which says what the run is and needs nothing else."""

import shutil

from turnwise.cli import report as module


def test_a_page_is_written(turnwise, run, empty_place):
    shutil.copytree(run, empty_place / "twin")
    status, said, _ = turnwise("report", run, "twin", "-o", "new/page.html", "--pictures", 2)
    assert status == 0
    assert f"open it in a browser: {empty_place.resolve() / 'new' / 'page.html'}" in said
    page = (empty_place / "new" / "page.html").read_text()
    assert "Turnwise report: run, twin" in page
    assert "name: orbit_vit" in page  # the recipe
    assert "has no certificate yet; make one: turnwise certify" in page
    assert "turnwise report" in page and "--output new/page.html" in page
    assert "http://" not in page and "https://" not in page
    assert len(page.encode()) < 5_000_000


def test_a_certificate_and_a_test_enter_the_page(turnwise, run, empty_place):
    assert turnwise("certify", run, "--pictures", 4, "--angles", 4)[0] == 0
    assert turnwise("test", run)[0] == 0
    assert turnwise("report", run, "--pictures", 1)[0] == 0
    page = (empty_place / "report.html").read_text()
    assert "INVARIANT under C4" in page and "Scores on the test split" in page


def test_a_page_too_large_is_not_written(refused, run, empty_place, monkeypatch):
    monkeypatch.setattr(module, "LARGEST", 1000)
    assert "show fewer --pictures" in refused("report", run, "--pictures", 1)
    assert not (empty_place / "report.html").exists()


def test_what_is_no_report(refused, run):
    assert "is neither a folder nor a model" in refused("report", "nowhere/run")
    assert "a page is written as .html, got 'a.pdf'" in refused("report", run, "-o", "a.pdf")
    assert "--pictures 0 must be at least 1" in refused("report", run, "--pictures", 0)
