"""Top-k accuracy against scikit-learn and torchmetrics."""

from types import SimpleNamespace

import pytest
import torch
from sklearn.metrics import top_k_accuracy_score
from torchmetrics.classification import MulticlassAccuracy

from notebook_learner.errors import OutputError
from notebook_learner.metric import Accuracy, TopKAccuracy


@pytest.mark.parametrize("k", [1, 2, 5])
def test_steps_and_epoch_agree_with_scikit_learn(classification, measure, device, k):
    def percent(output, targets):
        scores = output.cpu().numpy()
        return 100 * top_k_accuracy_score(targets.cpu(), scores, k=k, labels=range(7))

    for seed in range(200):
        items = classification(seed, device=device)
        columns, finals = measure([TopKAccuracy(k)], items)
        name = f"Top-K Accuracy @ TopK({k})"
        assert columns[name].tolist() == pytest.approx(
            [percent(i.output, i.targets) for i in items], rel=1e-12
        )
        whole = percent(torch.cat([i.output for i in items]), torch.cat([i.targets for i in items]))
        assert finals == {name: pytest.approx(whole, rel=1e-12)}


def test_pads_are_left_out_as_torchmetrics_leaves_them_out(classification, measure, device):
    for seed in range(200):
        items = classification(seed, device=device)
        reference = MulticlassAccuracy(7, top_k=3, average="micro", ignore_index=2).to(device)
        per_step = [100 * reference(item.output, item.targets).item() for item in items]
        columns, finals = measure([TopKAccuracy(3, pad_token=2)], items)
        (name,) = finals
        assert columns[name].tolist() == pytest.approx(per_step, rel=1e-6)
        assert finals[name] == pytest.approx(100 * reference.compute().item(), rel=1e-6)


def test_the_best_one_is_accuracy(classification, measure):
    columns, finals = measure([Accuracy(), TopKAccuracy(1)], classification(3))
    assert columns["Accuracy"].tolist() == columns["Top-K Accuracy @ TopK(1)"].tolist()
    assert finals["Accuracy"] == finals["Top-K Accuracy @ TopK(1)"]


def test_sequences_have_their_classes_last(measure):
    output = torch.randn(2, 6, 9, generator=torch.Generator().manual_seed(0))
    targets = output.topk(3).indices[..., 2]
    item = SimpleNamespace(output=output, targets=targets)
    assert list(measure([TopKAccuracy(3), TopKAccuracy(2)], [item])[1].values()) == [100.0, 0.0]


def test_fewer_classes_than_k_is_refused(measure):
    item = SimpleNamespace(output=torch.zeros(4, 3), targets=torch.zeros(4))
    with pytest.raises(OutputError, match="has 3 classes, fewer than k; choose a smaller k"):
        measure([TopKAccuracy(5)], [item])


def test_k_is_at_least_one():
    with pytest.raises(ValueError, match=r"TopKAccuracy\(k=0\).*at least 1"):
        TopKAccuracy(0)
