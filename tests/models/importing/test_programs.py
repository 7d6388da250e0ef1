"""The importers by name: each states what it takes, and refuses the rest."""

import pytest
import torch
from models.importing.golden_states import images_of, state_of

from turnwise.errors import InputError
from turnwise.models.importing.programs import PROGRAMS, import_from


def test_a_file_is_imported_by_the_name_of_its_program(tmp_path):
    torch.save(state_of("vit"), tmp_path / "net.pt")
    model = import_from(tmp_path / "net.pt", "dl2-vit", upright=True)
    assert model.config.options["transposed"] is False
    assert model(images_of("vit").float()).shape == (2, 10)


def test_what_a_program_does_not_take_is_refused(tmp_path):
    with pytest.raises(InputError, match="ge-vit takes no classes; it takes upright, activation"):
        import_from(tmp_path / "net.pt", "ge-vit", classes=3)
    with pytest.raises(InputError, match=r"unknown program 'gevit'\. Did you mean 'ge-vit'"):
        import_from(tmp_path / "net.pt", "gevit")
    for program in PROGRAMS:
        with pytest.raises(InputError, match="cannot read"):
            import_from(tmp_path / "net.pt", program)
