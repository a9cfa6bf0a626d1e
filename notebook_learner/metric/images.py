"""How close a picture is to its target: PSNR, SSIM and MS-SSIM."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d

from ..errors import OutputError
from .base import Input, Ratio, Scalar
from .tensors import Alike, exact_dtype, widened
from .torch_metric import torchmetrics


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


_WANG = (0.0448, 0.2856, 0.3001, 0.2363, 0.1333)


class SSIM(Ratio):
    """The structural similarity of images, at most 1: each image has its own value, and this is their mean.

    `output` and `targets` are images `[batch, channels, height, width]`; all channels have the same weight. A
    Gaussian window moves over the places at which it is inside the image, as in the paper (Wang 2004) and in
    scikit-image. torchmetrics' own mean also counts a mirrored border. A step's weight is its number of
    images.

    Args:
        data_range: the distance between the smallest and the largest pixel value: 1.0, or 255.0.
        sigma: the width of the window in pixels. It is cut off after 3.5 sigma: 11 pixels wide for 1.5.
        k1: a constant of the paper, against division by a small luminance.
        k2: a constant of the paper, against division by a small contrast.
        input: takes `output` and `targets` out of another output.

    >>> SSIM(255.0).name
    'SSIM@255'
    """

    higher_is_better = True
    needs = ("output", "targets")
    title = "SSIM"
    scales = 1

    def __init__(
        self,
        data_range: float = 1.0,
        *,
        sigma: float = 1.5,
        k1: float = 0.01,
        k2: float = 0.03,
        input: Input | None = None,
    ) -> None:
        if not data_range > 0 or not sigma > 0:
            raise ValueError(
                f"{type(self).__name__}(data_range={data_range}, sigma={sigma}): both are above 0"
            )
        super().__init__(input=input)
        self.data_range, self.sigma, self.k1, self.k2 = data_range, sigma, k1, k2
        self.name = f"{self.title}@{data_range:g}"
        self.radius = int(3.5 * sigma + 0.5)
        self._similarity = _similarity()

    def update(self, item: Any) -> tuple[Scalar, Scalar]:
        """Sum the similarities of the batch's images on the device."""
        output, targets = item.output, item.targets
        self._require_images(output, targets)
        return self.similarities(widened(output), widened(targets)).sum(), len(targets)

    def similarities(self, output: Tensor, targets: Tensor) -> Tensor:
        """Return the similarity of each image."""
        _, full = self._compared(output, targets, return_full_image=True)
        inner = full[..., self.radius : -self.radius, self.radius : -self.radius]
        return inner.flatten(1).mean(1)

    def _compared(self, output: Tensor, targets: Tensor, **kind: bool) -> tuple[Tensor, Tensor]:
        # The data range is given: otherwise torchmetrics would read it from the batch, and so from the
        # device.
        pair = self._similarity(
            output,
            targets.to(output.dtype),
            sigma=self.sigma,
            reduction="none",
            data_range=float(self.data_range),
            k1=self.k1,
            k2=self.k2,
            **kind,
        )
        return cast("tuple[Tensor, Tensor]", pair)

    def _require_images(self, output: Tensor, targets: Tensor) -> None:
        if output.shape != targets.shape or targets.ndim != 4:
            raise OutputError(
                f"{self.name} got `output` of shape {list(output.shape)} and `targets` of "
                f"{list(targets.shape)}: both are images [batch, channels, height, width] of one shape"
            )
        smallest = (2 * self.radius + 1) * 2 ** (self.scales - 1)
        if min(targets.shape[2:]) < smallest:
            raise OutputError(
                f"{self.name} got images of {targets.shape[2]} x {targets.shape[3]}: its window is "
                f"{2 * self.radius + 1} pixels wide"
                + (f" and they are halved {self.scales - 1} times" if self.scales > 1 else "")
                + f", so they need {smallest} pixels each way; choose a smaller sigma"
                + (", or fewer betas" if self.scales > 1 else "")
            )


class MSSSIM(SSIM):
    """The structural similarity at several scales (Wang 2003): the mean over the images.

    Contrast and structure are compared at each scale, the luminance at the last; between scales, averaging
    halves the images. A negative comparison counts as 0, since powers of it are not real numbers. Images need
    176 pixels in each direction with the paper's five scales. Shapes, arguments and weights are those of
    `SSIM`.

    Args:
        data_range: the distance between the smallest and the largest pixel value: 1.0, or 255.0.
        betas: the weight of each scale, from fine to coarse; their number is the number of scales.
        sigma: the width of the window in pixels.
        k1: a constant of the paper, against division by a small luminance.
        k2: a constant of the paper, against division by a small contrast.
        input: takes `output` and `targets` out of another output.

    >>> MSSSIM().name
    'MS-SSIM@1'
    """

    title = "MS-SSIM"

    def __init__(
        self,
        data_range: float = 1.0,
        *,
        betas: tuple[float, ...] = _WANG,
        sigma: float = 1.5,
        k1: float = 0.01,
        k2: float = 0.03,
        input: Input | None = None,
    ) -> None:
        if not betas:
            raise ValueError("MSSSIM(betas=()): give one number a scale")
        super().__init__(data_range, sigma=sigma, k1=k1, k2=k2, input=input)
        self.betas = betas
        self.scales = len(betas)

    def similarities(self, output: Tensor, targets: Tensor) -> Tensor:
        """Return the product over the scales."""
        product = torch.ones(len(output), dtype=output.dtype, device=output.device)
        for beta in self.betas[:-1]:
            _, contrast = self._compared(output, targets, return_contrast_sensitivity=True)
            product = product * contrast.relu() ** beta
            output, targets = avg_pool2d(output, 2), avg_pool2d(targets, 2)
        return product * super().similarities(output, targets).relu() ** self.betas[-1]


def _similarity() -> Callable[..., Any]:
    torchmetrics("SSIM and MSSSIM")
    from torchmetrics.functional.image import structural_similarity_index_measure

    return cast("Callable[..., Any]", structural_similarity_index_measure)
