"""PSNR and SSIM against scikit-image, MS-SSIM against its formula over scikit-image's maps."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from catalogue_cases import generators, images_epoch
from scipy.ndimage import correlate1d
from skimage.metrics import peak_signal_noise_ratio, structural_similarity

from notebook_learner.errors import OutputError
from notebook_learner.metric import MSSSIM, PSNR, SSIM, MetricGroup
from notebook_learner.metric.torch_metric import torchmetrics


def pairs(items):
    """Each image with its target, as doubles."""
    for item in items:
        yield from zip(item.targets.double().numpy(), item.output.double().numpy(), strict=True)


def similarity(target, image, top):
    return structural_similarity(
        target, image, data_range=top, channel_axis=0, gaussian_weights=True, sigma=1.5,
        use_sample_covariance=False,
    )  # fmt: skip


@pytest.mark.parametrize("top", [1.0, 255.0])
def test_psnr_is_the_mean_of_scikit_images(measure, top):
    for seed, rng in generators():
        dtype = torch.bfloat16 if seed % 4 == 3 else torch.float32
        items = images_epoch(seed, rng, 6, dtype, top)
        _, finals = measure([PSNR(top)], items)
        expected = [
            peak_signal_noise_ratio(target, image, data_range=top)
            if (target != image).any()
            else 10 * np.log10(top**2 / 1e-10)
            for target, image in pairs(items)
        ]
        assert finals[f"PSNR@{top:g}"] == pytest.approx(np.mean(expected), rel=1e-6), seed


@pytest.mark.parametrize("top", [1.0, 255.0])
def test_ssim_is_the_mean_of_scikit_images(measure, top):
    for seed, rng in generators(100):  # of each range
        dtype = (torch.float64, torch.float32, torch.bfloat16)[seed % 3]
        items = images_epoch(seed, rng, 13, dtype, top)
        columns, finals = measure([SSIM(top)], items)
        expected = [similarity(target, image, top) for target, image in pairs(items)]
        near = 1e-10 if dtype == torch.float64 else 1e-4
        assert finals[f"SSIM@{top:g}"] == pytest.approx(np.mean(expected), abs=near), seed
        first = len(items[0].targets)
        assert columns[f"SSIM@{top:g}"][0] == pytest.approx(np.mean(expected[:first]), abs=near), seed


def windowed(image):
    """The Gaussian mean around each place where the window lies within the image."""
    places = np.arange(-5, 6)
    window = np.exp(-((places / 1.5) ** 2) / 2)
    window /= window.sum()
    mean = correlate1d(correlate1d(image, window, axis=-1), window, axis=-2)
    return mean[..., 5:-5, 5:-5]


def multi_scale(target, image, betas, top=1.0):
    """Wang, Simoncelli and Bovik (2003), equation 7, in numpy."""
    c1, c2 = (0.01 * top) ** 2, (0.03 * top) ** 2
    product = 1.0
    for scale, beta in enumerate(betas, start=1):
        x, y = windowed(target), windowed(image)
        xx, yy = windowed(target * target) - x * x, windowed(image * image) - y * y
        similar = (2 * (windowed(target * image) - x * y) + c2) / (xx + yy + c2)
        if scale == len(betas):
            similar = similar * (2 * x * y + c1) / (x * x + y * y + c1)
        product *= max(similar.mean(), 0.0) ** beta
        target, image = halved(target), halved(image)
    return product


def halved(image):
    rows, columns = image.shape[-2] // 2 * 2, image.shape[-1] // 2 * 2
    image = image[..., :rows, :columns]
    return (image[..., ::2, ::2] + image[..., 1::2, ::2] + image[..., ::2, 1::2] + image[..., 1::2, 1::2]) / 4


def test_ms_ssim_is_the_papers_formula(measure):
    betas = (0.3, 0.7)
    for seed, rng in generators():
        dtype = torch.float64 if seed % 2 else torch.float32
        items = images_epoch(seed, rng, 23, dtype)
        _, finals = measure([MSSSIM(betas=betas)], items)
        expected = np.mean([multi_scale(target, image, betas) for target, image in pairs(items)])
        near = 1e-10 if dtype == torch.float64 else 1e-4
        assert finals["MS-SSIM@1"] == pytest.approx(expected, abs=near), seed


def test_ms_ssim_at_the_papers_five_scales(measure):
    rng = np.random.default_rng(0)
    targets = torch.as_tensor(rng.random((1, 1, 176, 180)))
    item = SimpleNamespace(
        output=targets + 0.2 * torch.as_tensor(rng.normal(size=targets.shape)), targets=targets
    )
    betas = (0.0448, 0.2856, 0.3001, 0.2363, 0.1333)
    ((target, image),) = pairs([item])
    assert measure([MSSSIM()], [item])[1]["MS-SSIM@1"] == pytest.approx(
        multi_scale(target, image, betas), rel=1e-9
    )


def test_images_that_contradict_each_other_are_not_alike(measure):
    targets = torch.rand(1, 1, 22, 22, generator=torch.Generator().manual_seed(0))
    item = SimpleNamespace(output=1 - targets, targets=targets)
    assert measure([MSSSIM(betas=(0.5, 0.5))], [item])[1]["MS-SSIM@1"] == 0.0
    assert measure([SSIM()], [item])[1]["SSIM@1"] < 0


@pytest.mark.parametrize("metric", [PSNR(), SSIM(), MSSSIM(betas=(0.5, 0.5))])
def test_every_image_counts_once_however_the_batches_are_cut(measure, metric):
    generator = torch.Generator().manual_seed(0)
    targets = torch.rand(5, 1, 24, 24, generator=generator, dtype=torch.float64)
    output = targets + torch.linspace(0.01, 0.5, 5)[:, None, None, None]
    whole = SimpleNamespace(output=output, targets=targets)
    cut = [SimpleNamespace(output=output[at], targets=targets[at]) for at in (slice(4), slice(4, 5))]
    assert measure([metric], [whole])[1] == pytest.approx(measure([metric], cut)[1], rel=1e-12)
    columns, finals = measure([metric], cut)
    assert finals[metric.name] != pytest.approx(columns[metric.name].mean(), rel=1e-3)


@pytest.mark.parametrize("metric", [PSNR(), SSIM()])
def test_a_pixel_that_is_nan_makes_the_epoch_nan(measure, metric):
    targets = torch.rand(1, 1, 12, 12)
    output = targets.clone()
    output[0, 0, 6, 6] = float("nan")
    assert np.isnan(measure([metric], [SimpleNamespace(output=output, targets=targets)])[1][metric.name])


@pytest.mark.parametrize(
    ("metric", "shape", "message"),
    [
        (SSIM(), (2, 12, 12), "images .batch, channels, height, width. of one shape"),
        (SSIM(), (1, 1, 12, 10), "12 x 10: its window is 11 pixels wide, so they need 11 .* smaller sigma$"),
        (MSSSIM(), (1, 1, 100, 100), "halved 4 times, so they need 176 .* or fewer betas"),
        (PSNR(), (4,), "the batch in dimension 0 and pixels after it"),
    ],
)
def test_what_is_no_image_is_refused(metric, shape, message):
    with pytest.raises(OutputError, match=message):
        MetricGroup([metric]).collect(SimpleNamespace(output=torch.ones(shape), targets=torch.ones(shape)))


@pytest.mark.parametrize("make", [lambda: PSNR(0), lambda: SSIM(1.0, sigma=0), lambda: MSSSIM(betas=())])
def test_arguments_that_make_no_sense(make):
    with pytest.raises(ValueError):
        make()


def test_a_missing_torchmetrics_is_named_with_the_line_that_installs_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchmetrics", None)
    with pytest.raises(
        ImportError, match=r"SSIM and MSSSIM need torchmetrics.*pip install 'torchmetrics>=1.4'"
    ):
        torchmetrics("SSIM and MSSSIM")
    with pytest.raises(ImportError, match="pip install"):
        SSIM()
