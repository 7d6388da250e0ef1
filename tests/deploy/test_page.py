"""The page of the service needs nothing else, and escapes the name of the model."""

from turnwise.deploy.page import serve_page


def test_the_name_is_escaped_and_nothing_is_loaded():
    html = serve_page("m <b>")
    assert "m &lt;b&gt;" in html and "m <b>" not in html
    assert "http://" not in html and "https://" not in html
    assert "connect-src 'self'; script-src 'sha256-" in html
