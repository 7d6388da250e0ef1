"""Forward and backward passes recorded as CUDA graphs: the CPU then launches two graphs per step
instead of each of their kernels."""

from typing import Any

import torch
from torch import Tensor, nn

from turnwise.errors import InputError


class _Passes(nn.Module):
    """A model with its preprocessing."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        return self.model.forward(self.model.preprocess(images))  # type: ignore[operator]


class RecordedModel:
    """A model in training mode, recorded at the first batch on a GPU; on a CPU the model itself.

    Outputs and gradients are those of the model, because the same kernels run.  Passes are recorded
    again for images of another shape, and when a tensor of the model has moved in memory.
    """

    def __init__(self, model: nn.Module) -> None:
        if model._forward_pre_hooks:
            raise InputError(
                "this model changes before each step (it redraws random features), which a "
                "recorded step cannot; set trainer.compile, too, or trainer.cuda_graphs=false."
            )
        self.model = model
        self._replay: nn.Module | None = None
        self._recorded: tuple[Any, ...] = ()

    def __call__(self, images: Tensor) -> Tensor:
        if not images.is_cuda:
            return _Passes(self.model)(images)
        return self.replay_for(images)(images)

    def replay_for(self, images: Tensor) -> nn.Module:
        """Return the recorded passes for such images; record them unless that is done."""
        tensors = [*self.model.parameters(), *self.model.buffers()]
        state = (images.shape, images.dtype, *(x.data_ptr() for x in tensors))
        if self._replay is None or self._recorded != state:
            self._replay, self._recorded = self._record(images), state
        return self._replay

    def _record(self, images: Tensor) -> nn.Module:
        """Record both passes; buffers and random numbers are afterwards as they were before."""
        device, buffers = images.device, [x.clone() for x in self.model.buffers()]
        is_mixed, kind = torch.is_autocast_enabled(device.type), device.type
        try:
            with (
                torch.random.fork_rng([device] if images.is_cuda else []),
                torch.autocast(
                    kind, torch.get_autocast_dtype(kind), enabled=is_mixed, cache_enabled=False
                ),
            ):
                replay = torch.cuda.make_graphed_callables(
                    _Passes(self.model), (images.clone(),), allow_unused_input=True
                )
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            raise InputError(
                f"the training steps of this model cannot be recorded ({str(error).splitlines()[0]}"
                "); set trainer.cuda_graphs=false."
            ) from error
        with torch.no_grad():
            for now, before in zip(self.model.buffers(), buffers, strict=True):
                now.copy_(before)
        return replay  # type: ignore[return-value]
