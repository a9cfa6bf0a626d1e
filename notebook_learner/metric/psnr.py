"""How strong the signal is compared with the error, in images."""

from __future__ import annotations

import math
from typing import Any

from ..errors import OutputError
from .base import Input, Ratio, Scalar
from .tensors import Alike, exact_dtype, widened


class PSNR(Ratio):
    """The peak signal-to-noise ratio in dB: each image has its own value, and this is their mean.

    `output` and `targets` are images with the batch in dimension 0. The mean is taken as in Burn, and as
    super-resolution is reported. A step's weight is its number of images.

    Args:
        data_range: the distance between the smallest and the largest pixel value: 1.0, or 255.0.
        epsilon: the smallest mean squared error that counts. Without it, an exactly predicted image would
            make its ratio and the epoch's infinite; with it, such an image gives 100 dB for a range of 1.
        input: takes `output` and `targets` out of another output.

    >>> PSNR(255.0).name
    'PSNR@255'
    """

    unit = "dB"
    higher_is_better = True
    needs = ("output", "targets")

    def __init__(
        self, data_range: float = 1.0, *, epsilon: float = 1e-10, input: Input | None = None
    ) -> None:
        if not data_range > 0 or not epsilon > 0:
            raise ValueError(f"PSNR(data_range={data_range}, epsilon={epsilon}): both are above 0")
        super().__init__(input=input)
        self.data_range = data_range
        self.epsilon = epsilon
        self.name = f"PSNR@{data_range:g}"
        self._alike = Alike(self.name)

    def update(self, item: Any) -> tuple[Scalar, Scalar]:
        """Sum the ratios of the batch's images on the device."""
        targets = item.targets
        if targets.ndim < 2:
            raise OutputError(
                f"{self.name} got `targets` of shape {list(targets.shape)}: images have the batch in "
                "dimension 0 and pixels after it"
            )
        output = self._alike(item.output, targets)
        difference = (widened(output) - widened(targets)).flatten(1)
        error = difference.square().mean(1, dtype=exact_dtype(difference.device)).clamp_min(self.epsilon)
        return (20 * math.log10(self.data_range) - 10 * error.log10()).sum(), len(targets)
