"""Tables as HTML, for the `_repr_html_` of objects that notebooks display."""

from collections.abc import Sequence
from html import escape


def html_table(title: str, headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table with a caption; every text is escaped.

    >>> html_table("a < b", ["n"], [["1"]])
    '<table><caption>a &lt; b</caption><tr><th>n</th></tr><tr><td>1</td></tr></table>'
    """
    head = "".join(f"<th>{escape(text)}</th>" for text in headers)
    body = "".join(f"<tr>{''.join(f'<td>{escape(c)}</td>' for c in row)}</tr>" for row in rows)
    return f"<table><caption>{escape(title)}</caption><tr>{head}</tr>{body}</table>"
