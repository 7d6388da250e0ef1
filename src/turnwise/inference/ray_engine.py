"""The Ray engine: the parts of a job are rows of a Ray data set, and `PartRunner` is its actor.

Ray schedules, retries what was lost with a node, and scales from one machine to a cluster.  Every
node must see the images and the folder of the output under the same paths.
"""

import os
from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import Any

from turnwise.errors import InputError, import_extra
from turnwise.inference.engines import PartRunner, Work

LOCAL = {"include_dashboard": False, "_node_ip_address": "127.0.0.1"}  # nobody else can reach it
DEVICE = {True: "cuda", False: "cpu"}


def run_on_ray(
    work: Work,
    parts: Sequence[int],
    *,
    address: str = "",
    actors: int | None = None,
    gpu: bool = False,
) -> Iterator[int]:
    """Compute parts with actors of Ray; yield the number of images as parts end.

    Args:
        work: what to do; it is sent to every actor.
        parts: numbers of the parts that are missing.
        address: of a cluster, "auto" for the one that this machine belongs to; empty starts Ray on
            this machine, and stops it in the end.
        actors: how many models run at once; None is as many as there are free cores or GPUs.
        gpu: whether every actor has a GPU of its own.
    """
    ray = _ray()
    started = not ray.is_initialized()
    if started:
        _connect(ray, address)
    try:
        resources: dict[str, Any] = {"num_gpus": 1} if gpu else {"num_cpus": 1}
        available = int(ray.cluster_resources().get("GPU" if gpu else "CPU", 1))
        count = min(len(parts), actors or available)
        rows = ray.data.from_items(
            [{"part": part} for part in parts], override_num_blocks=len(parts)
        )
        done = rows.map_batches(
            PartRunner, fn_constructor_args=(work, DEVICE[gpu]), batch_size=1,
            compute=ray.data.ActorPoolStrategy(min_size=1, max_size=max(1, count)), **resources,
        )  # fmt: skip
        for row in done.iter_rows():
            yield int(row["images"])
    finally:
        if started:
            ray.shutdown()


def _ray() -> Any:
    import_extra("ray.data", "ray", "the Ray engine")
    return import_module("ray")


def _connect(ray: Any, address: str) -> None:
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        ray.init(
            address=address or "local", log_to_driver=False, configure_logging=False,
            **({} if address else LOCAL),
        )  # fmt: skip
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(
            f"Ray cannot be reached at {address or 'this machine'}: {reason}"
        ) from error
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
