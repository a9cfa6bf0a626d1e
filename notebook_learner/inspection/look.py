"""Run a step once with hooks, and describe all that they see."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from ..renderer.text import one_line
from .batch import decoder, describe_batch, picture, tensors_in
from .culprit import Trace
from .inspection import Inspection
from .layers import Weights, describe_layers
from .memory import SavedTensors, describe_memory
from .module_hooks import Call, plain_model
from .optimizer import describe_optimizer
from .samples import Samples, field_of, item_of, loss_of, sample_losses

_LONGEST_FAILURE = 2000


def look(
    batch: Any,
    run: Callable[[], Any],
    model: nn.Module,
    optimizer: Any = None,
    *,
    apply: Callable[[], Any] | None = None,
    drives: bool = False,
    loss_fn: Callable[..., Any] | None = None,
    tokenizer: Any = None,
    place: str = "",
    times: Mapping[str, float] | None = None,
    scale: float = 1.0,
) -> Inspection:
    """Run one step and describe it: batch, samples, layers, optimizer, memory.

    The step changes gradients, buffers, random numbers and, with `apply`, the weights. The caller restores
    them. All hooks are removed at the end, even if the step raises; the exception then becomes part of the
    result.

    Args:
        batch: the step's batch, on the model's device.
        run: one forward and backward pass; returns the step's output.
        model: the module whose layers are described.
        optimizer: the optimizer whose groups and state are described.
        apply: one update of the optimizer, to measure how far it moves the weights.
        drives: whether `run` moves the weights itself.
        loss_fn: the loss the model is trained on; it is called for the losses of single samples.
        tokenizer: an object with a `decode`, or a function from token numbers to text.
        place: the position of the training, for the report's title.
        times: seconds spent on parts of a step, such as data, forward, backward, optimizer.
        scale: the factor on the gradients (a GradScaler's scale); they are shown without it.

    Returns:
        Plain numbers and text: nothing on a device, and no part of the graph.

    >>> import torch
    >>> model = nn.Sequential(nn.Linear(2, 3), nn.ReLU())
    >>> x = torch.ones(4, 2)
    >>> def run():
    ...     loss = model(x).square().mean()
    ...     loss.backward()
    ...     return loss
    >>> inspection = look(x, run, model)
    >>> [layer.kind for layer in inspection.layers], inspection["0"].shape
    (['Linear', 'ReLU'], (4, 3))
    """
    plain = plain_model(model)
    trace, weights = Trace(batch, model, measuring=True), Weights(plain, scale)
    rows, pictures = describe_batch(batch, tokenizer)
    tensors = (tensor for _, tensor in tensors_in(batch))
    saved = SavedTensors([*plain.parameters(), *plain.buffers(), *tensors])
    output, failed = None, None
    groups = describe_optimizer(optimizer)
    if drives:
        weights.before_update()
    with trace.watch.watching(), saved.watching():
        try:
            output = run()
        except Exception as error:
            failed = _failure(error, trace.watch.where)
    trace.after_step(output)
    weights.after_step()
    samples = _samples(output, loss_fn, tokenizer)
    loss = _loss(output)
    made = field_of(item_of(output), "output")
    pictures += tuple(one for path, each in tensors_in(made) if (one := picture(f"output{path}", each)))
    del output, made  # and the graph with it, before anything is copied
    memory = describe_memory(plain, optimizer, batch, saved.bytes)
    not_applied = ""
    if drives and not failed:
        weights.after_update()
        trace.after_update()
    elif apply is not None and not failed:
        not_applied = _update(trace, weights, apply)
    parameters = weights.rows()
    layers = describe_layers(plain, trace.watch, parameters, scale=scale, failed=failed is not None)
    return Inspection(
        place=place,
        model=type(plain).__name__,
        loss=loss,
        failed=failed,
        first_non_finite=trace.culprit(failed=failed is not None),
        batch=rows,
        thumbnails=pictures,
        samples=samples.rows,
        samples_reason=samples.reason,
        layers=layers,
        parameters=tuple(parameters.values()),
        optimizer=groups,
        memory=memory,
        times=None if times is None else {name: float(seconds) for name, seconds in times.items()},
        notes=tuple(note for note in (_unseen(trace, failed), not_applied) if note),
    )


def _failure(error: Exception, where: Call | None) -> str:
    said = " ".join(one_line(str(error)).split())
    text = f"{type(error).__name__}: {said}" if said else type(error).__name__
    text = text if len(text) <= _LONGEST_FAILURE else f"{text[: _LONGEST_FAILURE - 1]}…"
    return text if where is None else f"{text} (in {where.label})"


def _loss(output: Any) -> float | None:
    loss = loss_of(item_of(output))
    return float(loss) if loss is not None and loss.numel() == 1 and not loss.is_complex() else None


def _samples(output: Any, loss_fn: Callable[..., Any] | None, tokenizer: Any) -> Samples:
    try:
        return sample_losses(output, loss_fn, decoder(tokenizer))
    except Exception as error:  # the user's own output class may fail here; the rest is still useful
        return Samples(None, f"the output cannot be taken apart into samples: {_failure(error, None)}")


def _update(trace: Trace, weights: Weights, apply: Callable[[], Any]) -> str:
    weights.before_update()
    try:
        apply()
    except Exception as error:
        return f"the update failed: {_failure(error, None)}"
    weights.after_update()
    trace.after_update()
    return ""


def _unseen(trace: Trace, failed: str | None) -> str:
    if trace.watch.calls or failed is not None:
        return ""
    return (
        "no module was seen running, so there are no activations: a step that was compiled, scripted or "
        "captured beforehand, or one that uses another model, calls none of this model's hooks"
    )
