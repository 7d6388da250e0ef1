"""The tables of docs/papers/performers.md are made from the records."""

import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]


def test_the_tables_are_made_from_the_records():
    check = [sys.executable, str(REPOSITORY / "benchmarks" / "performer_tables.py"), "--check"]
    hint = "run python benchmarks/performer_tables.py"
    assert subprocess.run(check, check=False).returncode == 0, hint


def test_every_table_is_in_the_page():
    text = (REPOSITORY / "docs" / "papers" / "performers.md").read_text()
    for name in ("accuracies", "shifts", "growth", "window", "steps"):
        assert f"<!-- performer_{name}: made by benchmarks/performer_tables.py -->\n|" in text
        assert f"<!-- end: performer_{name} -->" in text
