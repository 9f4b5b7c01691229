# Copyright The Lightning AI team.
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""The ordered end of a run after an exception: in the ranks, and in the main process of a multiprocessing launcher."""

import sys
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any, Callable, Iterator, List, Optional

import torch

import lightning.pytorch as pl
from lightning.fabric.strategies.launchers.lifetime import _handling
from lightning.fabric.strategies.launchers.process_ranks import _was_handled_by_ranks
from lightning.pytorch.callbacks import Checkpoint
from lightning.pytorch.trainer.states import TrainerFn, TrainerStatus
from lightning.pytorch.utilities.exceptions import _TunerExitException

_shutdowns: List[ExitStack] = []  # what ends with the calls, innermost last, that deal with exceptions in this process


def _shuts_down_in_order(function: Callable[..., Any]) -> Callable[..., Any]:
    """Make a function that deals with the exceptions of a run do so as a part of the job; runs in every process.

    It begins with the hook ``on_exception`` of the callbacks, see :func:`_begin_shutdown`, and ends with the function.

    """

    @wraps(function)
    def shut_down_in_order(*args: Any, **kwargs: Any) -> Any:
        with ExitStack() as stack:
            _shutdowns.append(stack)
            stack.callback(_shutdowns.pop)
            return function(*args, **kwargs)

    return shut_down_in_order


def _begin_shutdown(trainer: "pl.Trainer", exception: BaseException) -> None:  # type: ignore[name-defined]
    """Let other processes give this one the time to deal with an exception, before any callback or logger does."""
    # local import to avoid a circular import
    from lightning.pytorch.strategies.ddp import DDPStrategy

    if _shutdowns:
        alone = isinstance(trainer.strategy, DDPStrategy)
        _shutdowns[-1].enter_context(_handling(exception, alone))
        _shutdowns[-1].enter_context(_leaves_checkpoints_to_ranks(trainer, exception))


@_shuts_down_in_order
def _shut_down(trainer: "pl.Trainer", exception: BaseException) -> None:  # type: ignore[name-defined]
    """Deal with an exception as the trainer does in a process that launches."""
    # local import to avoid a circular import
    from lightning.pytorch.trainer import call

    if hasattr(call, "_interrupt"):  # since release 2.3
        call._interrupt(trainer, exception)
    else:
        trainer.state.status = TrainerStatus.INTERRUPTED
        call._call_callback_hooks(trainer, "on_exception", exception)
        trainer.strategy.on_exception(exception)
        for logger in trainer.loggers:
            logger.finalize("failed")
    trainer._teardown()


@contextmanager
def _shuts_down(trainer: Optional["pl.Trainer"]) -> Iterator[None]:  # type: ignore[name-defined]
    """Deal with an exception where the trainer's state is: call the hooks, finalize the loggers; runs in the ranks.

    Args:
        trainer: The trainer whose function the rank runs, if it is one.

    """
    try:
        yield
    except _TunerExitException:
        raise
    except BaseException as exception:
        if trainer is not None:
            _shut_down(trainer, exception)
        if isinstance(exception, KeyboardInterrupt):
            sys.exit(1)  # PyTorch would turn it into a success
        raise


def _ranks_end_together(trainer: "pl.Trainer") -> bool:  # type: ignore[name-defined]
    """Whether all ranks learn at the start of a training batch that rank 0 was told to end (SIGTERM); runs in ranks.

    Until then, none may leave by itself: the others would wait for it in a collective.

    """
    if not hasattr(trainer.fit_loop.epoch_loop, "_broadcast_sigterm_tensor"):  # since release 2.5.3
        return False
    is_distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
    return bool(is_distributed and trainer.world_size > 1 and trainer.state.fn == TrainerFn.FITTING)


@contextmanager
def _leaves_checkpoints_to_ranks(trainer: "pl.Trainer", exception: BaseException) -> Iterator[None]:  # type: ignore[name-defined]
    """Leave callbacks out that save checkpoints, if ranks have dealt with the exception; runs in the main process.

    What they would save is the model as it was before the launch, over what rank 0 has saved.

    """
    callbacks = trainer.callbacks
    if _was_handled_by_ranks(exception):
        trainer.callbacks = [callback for callback in callbacks if not isinstance(callback, Checkpoint)]
    try:
        yield
    finally:
        trainer.callbacks = callbacks
