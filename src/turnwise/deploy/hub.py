"""Models on the Hugging Face Hub: safetensors, config.json and a model card; nothing is executed.

A repository holds what `turnwise.save` writes, so a snapshot of it is a model folder.  Downloads,
caching and HF_HUB_OFFLINE are huggingface_hub's.
"""

import os
import re
import tempfile
from pathlib import Path
from typing import Any

import yaml
from torch import nn

from turnwise.errors import InputError, import_extra, require
from turnwise.files import write_atomic
from turnwise.groups import PlanarGroup
from turnwise.models.registry import config_of
from turnwise.models.storage import CONFIG, WEIGHTS, load, save
from turnwise.models.weights import pretrained_folder
from turnwise.runs.run import Run

REPOSITORY = re.compile(r"[\w][\w.-]*/[\w][\w.-]*")
README = "README.md"


def from_pretrained(name: str | os.PathLike[str], revision: str | None = None) -> nn.Module:
    """Open a model folder, a run, pretrained weights by name, or "user/name" on the Hub.

    Args:
        name: a path takes precedence over a repository of the same name.
        revision: branch, tag or commit of the repository.

    The model is in eval mode.  With HF_HUB_OFFLINE=1 only what was downloaded before is opened.
    """
    text = os.fspath(name)
    local = Path(text).exists() or pretrained_folder(text) is not None
    if local or REPOSITORY.fullmatch(text) is None:
        require(revision is None, f"{text} is no repository, so it has no revisions; leave it out.")
        return load(text)
    hub = import_extra("huggingface_hub", "hub", "the Hub")
    try:
        folder = hub.snapshot_download(
            text, revision=revision, allow_patterns=[CONFIG, WEIGHTS]
        )  # fmt: skip
    except Exception as error:  # of the network, the cache or the Hub
        raise InputError(
            f"{text} is no folder, and no model of the Hub that can be read ({_first_line(error)})."
        ) from error
    return load(folder)


def push_to_hub(
    target: nn.Module | str | os.PathLike[str],
    repository: str,
    *,
    private: bool = False,
    licence: str = "",
) -> str:
    """Upload a model with its card to the repository "user/name", and return its address.

    Args:
        target: a model that `save` can write, or a run, whose test scores are then on the card.
        repository: is made if it does not exist.
        private: make it visible to its owner only.
        licence: of the weights, as the Hub spells it: "mit", "cc-by-nc-4.0".

    huggingface_hub finds the token: HF_TOKEN, or `hf auth login`.
    """
    require(
        REPOSITORY.fullmatch(repository) is not None,
        f"{repository!r} is no repository; write user/name.",
    )
    hub = import_extra("huggingface_hub", "hub", "the Hub")
    with tempfile.TemporaryDirectory(prefix="turnwise-") as temporary:
        folder = write_repository(target, Path(temporary) / "model", repository, licence)
        try:
            hub.create_repo(repository, private=private, exist_ok=True)
            commit = hub.upload_folder(
                repo_id=repository, folder_path=folder, commit_message="Upload a Turnwise model"
            )
        except Exception as error:  # of the network or the Hub
            raise InputError(f"cannot upload to {repository}: {_first_line(error)}.") from error
    return str(commit.repo_url)


def write_repository(
    target: nn.Module | str | os.PathLike[str], folder: Path, name: str, licence: str = ""
) -> Path:
    """Write what a repository holds into `folder`."""
    run = None if isinstance(target, nn.Module) else Run(target)
    model = target if isinstance(target, nn.Module) else load(target)
    save(model, folder)
    card = model_card(model, name, licence, run if run is not None and run.exists else None)
    write_atomic(folder / README, card.encode())
    return folder


def model_card(model: nn.Module, name: str, licence: str = "", run: Run | None = None) -> str:
    """Return the page of a repository, with the test scores of a run that was tested."""
    config, group = config_of(model), PlanarGroup.named(config_of(model).options["group"])
    head: dict[str, Any] = {
        "library_name": "turnwise",
        "pipeline_tag": "image-classification",
        "tags": ["equivariance", f"group:{group.name}"],
    }
    head |= {"license": licence} if licence else {}
    options = config.options
    parameters = sum(parameter.numel() for parameter in model.parameters())
    classes = ", ".join(getattr(model, "classes", ())) or f"{options['num_classes']} classes"
    facts = {
        "model": config.name,
        "group": group.name,
        "parameters": f"{parameters:,}",
        "images": f"{options['in_chans']} × {options['image_size']} × {options['image_size']}",
        "classes": classes.replace("|", "\\|"),
        **(_scores(run) if run is not None else {}),
    }
    table = "\n".join(f"| {key} | {value} |" for key, value in facts.items())
    return f"""---
{yaml.safe_dump(head, sort_keys=False).strip()}
---

# {name}

| | |
|:--|:--|
{table}

```python
import turnwise

model = turnwise.from_pretrained("{name}")  # images in [0, 1]: model(model.preprocess(images))
```
"""


def _scores(run: Run) -> dict[str, str]:
    tested = run.evaluation()
    if tested is None:
        return {}
    values = {key: score["value"] for key, score in tested["scores"].items()}
    return {f"test {key.replace('_', ' ')}": f"{value:.4f}" for key, value in values.items()}


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200].rstrip(".")
