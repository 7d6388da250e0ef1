"""The recipes that ship with the package, found by name.

A wheel holds them inside the package; in a checkout they are in the folder `recipes` at its root.
"""

from pathlib import Path

PACKAGE = Path(__file__).parents[1]
SUFFIX = ".yaml"


def recipes_folder() -> Path:
    """Return the folder of the shipped recipes; it may be missing."""
    packaged = PACKAGE / "recipes"
    in_checkout = PACKAGE.parent.name == "src" and not packaged.is_dir()
    return PACKAGE.parents[1] / "recipes" if in_checkout else packaged


def list_recipes() -> list[str]:
    """Return the names of all shipped recipes."""
    return sorted(path.stem for path in recipes_folder().glob(f"*{SUFFIX}"))


def find_recipe(name: str) -> Path | None:
    """Return the file of the shipped recipe called `name`, None if there is none.

    >>> find_recipe("rotmnist_gsa_net_p4").name, find_recipe("no_such_recipe")
    ('rotmnist_gsa_net_p4.yaml', None)
    """
    is_plain = name == Path(name).name and bool(name)
    path = recipes_folder() / f"{name.removesuffix(SUFFIX)}{SUFFIX}"
    return path if is_plain and path.is_file() else None
