"""A forward pass as a CUDA graph: one launch for each batch instead of one for each kernel."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from turnwise.errors import InputError

Outputs = dict[str, Tensor]


class RecordedPass:
    """A function of a batch, recorded in its first call and replayed in the next ones.

    It is recorded again when `state` changes: the shape of the batch, and where weights are in
    memory.  Copies and pickles start without a recording.
    """

    def __init__(self) -> None:
        self._state: tuple[Any, ...] = ()
        self._graph: Any = None
        self._batch = torch.empty(0)
        self._outputs: Outputs = {}

    def __call__(
        self, function: Callable[[Tensor], Outputs], batch: Tensor, state: tuple[Any, ...]
    ) -> Outputs:
        """Return function(batch)."""
        if self._graph is None or self._state != state:
            self._record(function, batch)
            self._state = state
        self._batch.copy_(batch)
        self._graph.replay()
        return {name: output.clone() for name, output in self._outputs.items()}

    def _record(self, function: Callable[[Tensor], Outputs], batch: Tensor) -> None:
        self._graph, self._batch = None, batch.clone()
        aside = torch.cuda.Stream(batch.device)
        aside.wait_stream(torch.cuda.current_stream(batch.device))
        with torch.cuda.stream(aside):
            for _ in range(2):  # what is allocated and chosen in first calls is not recorded
                function(self._batch)
        torch.cuda.current_stream(batch.device).wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                self._outputs = function(self._batch)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            raise InputError(
                "the forward pass of this model cannot be recorded "
                f"({str(error).splitlines()[0]}); set cuda_graphs=False."
            ) from error
        self._graph = graph

    def __reduce__(self) -> tuple[Any, ...]:
        return RecordedPass, ()
