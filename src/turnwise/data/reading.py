"""`Reading`: how a user's own images are read; each field is a key of a recipe's `data` part."""

from dataclasses import dataclass

from turnwise.options import Options, option

LAYOUTS = ("auto", "class", "group/class", "class/group")
TARGET_KINDS = ("auto", "class", "ordinal", "multilabel", "number", "mask", "instances")


@dataclass(frozen=True)
class Columns(Options):
    """The columns of a manifest; an empty name takes the usual ones, which readers list."""

    path: str = option("", "column with the paths of the images")
    label: tuple[str, ...] = option((), "columns with what the model predicts")
    split: str = option("", "column with train, val or test")
    mask: str = option("", "column with the paths of masks")


@dataclass(frozen=True)
class Reading(Options):
    """How a user's own images are read, grouped and checked."""

    layout: str = option("auto", "what the sub-folders of a folder are", choices=LAYOUTS)
    columns: Columns = option(Columns, "the columns of a manifest")
    target: str = option("auto", "what the model predicts", choices=TARGET_KINDS)
    classes: tuple[str, ...] = option((), "the classes in their order (default: sorted)")
    ignore: str = option(
        "", "value or colour of the pixels of masks that do not count, such as 255 or #ffffff"
    )
    unit: str = option("", "unit of the numbers to predict, such as mm")
    group_by: str = option(
        "",
        "what makes a group, such as a patient: a column, level:N (the N-th folder of the path, "
        "level:-1 the last), or a regular expression on the file name",
    )
    on_error: str = option("fail", "what to do about unusable files", choices=("fail", "skip"))
    min_side: int = option(4, "shortest side in pixels of a usable image", at_least=1)

    @property
    def skips(self) -> bool:
        """Whether unusable files are left out instead of raising an error."""
        return self.on_error == "skip"

    @property
    def reads_differently(self) -> bool:
        """Whether a setting applies to images of one's own alone."""
        usable = Reading(on_error=self.on_error, min_side=self.min_side)
        return self != usable
