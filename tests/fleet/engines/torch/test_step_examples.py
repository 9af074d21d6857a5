"""Each example of a training step of its own equals a plain loop of PyTorch, over ten epochs."""

import copy
import importlib
import sys
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest

from fleet.comm.single_rank import SingleRankGroup
from fleet.engines.registry import make_engine
from fleet.engines.steps import StepBatches
from fleet.spec import parse
from preprocess.padding import Pad
from preprocess.probe import infer_sample_spec
from preprocess.record_pipeline import make_pipeline
from preprocess.records import parse_record_transforms
from preprocess.sample import Affine, ArraySpec, SampleSpec, cut_rows
from preprocess.target import TargetSpec, TargetWish, class_target
from preprocess.user_code import seed_host_generators
from preprocess.views import Measured, with_requested_targets
from tests.places import ROOT

pytestmark = pytest.mark.torch

EPOCHS, BATCHES, ROWS = 10, 4, 16
SEED = 5
FOLDER = ROOT / "examples" / "steps"


@pytest.fixture(autouse=True)
def _import_examples(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    yield
    for name in ("vae", "simclr", "gan", "distillation", "transformer"):
        sys.modules.pop(name, None)


def sample_of(mean=0.5, std=0.5, target=TargetSpec("none", 0)):
    affine = Affine(mean, std)
    return SampleSpec(ArraySpec((16, 16, 1), "uint8"), target.outputs, affine, None, target)


def batches():
    """Yield images of blurred spots, and labels, of all steps of ten epochs."""
    random = np.random.default_rng(0)
    images = random.integers(0, 256, (BATCHES * ROWS, 4, 4, 1)).astype(np.uint8)
    images = images.repeat(4, 1).repeat(4, 2)
    labels = random.integers(0, 10, len(images))
    for _ in range(EPOCHS):
        order = random.permutation(len(images)).reshape(BATCHES, ROWS)
        for rows in order:
            yield images[rows], labels[rows], rows


def trained(name, sample, args=None, batches=batches, **train):
    """Train a network of an example; return its module before and after.

    Args:
        batches: yields inputs, targets and rows in the data set of all steps.
    """
    content = {
        "models": [{"build": f"{name}:network", "args": args or {}}],
        "resources": {"engine": "torch"},
        "train": {"step": f"{name}:step", "stopping": {"monitor": "loss"}, **train},
    }
    [network] = parse(content).networks
    engine = make_engine(parse(content), sample, None, 0, 1)
    trainable = engine.build(replace(network, seed=SEED), SingleRankGroup())
    before = copy.deepcopy(trainable.module)
    for images, labels, indices in batches():
        targets = labels if sample.target.semantics.exists else np.zeros_like(labels)
        size = [len(labels)]
        trainable.user_steps.begin(StepBatches((images, targets), size, size), indices)()
    return before, trainable.module


@contextmanager
def seeded(step):
    """Seed the generators as in a step of a network on one rank."""
    import torch

    from fleet.engines.torch.steps import mix_seed

    seed = mix_seed(SEED, step, 0)
    torch.manual_seed(seed)
    seed_host_generators(seed)
    yield


def scaled_batches(mean, std):
    """Yield inputs as modules take them, and labels."""
    import torch

    for images, labels, _ in batches():
        scaled = Affine(mean, std).apply(images)
        yield torch.from_numpy(scaled).permute(0, 3, 1, 2).contiguous(), torch.from_numpy(labels)


def assert_equal_weights(module, expected):
    for name, value in expected.state_dict().items():
        assert module.state_dict()[name].numpy() == pytest.approx(value.numpy(), abs=1e-5), name


def test_vae_equals_a_plain_loop():
    import torch
    from torch.nn.functional import binary_cross_entropy_with_logits

    optimizer = {"name": "adam", "learning_rate": 0.002}
    plain, module = trained("vae", sample_of(0.0, 1.0), optimizer=optimizer)
    plain_optimizer = torch.optim.Adam(plain.parameters(), lr=0.002)
    for step, (images, _) in enumerate(scaled_batches(0.0, 1.0)):
        with seeded(step):
            logits, mean, log_variance = plain(images)
        error = binary_cross_entropy_with_logits(logits, images.flatten(1), reduction="sum")
        divergence = -0.5 * (1 + log_variance - mean**2 - log_variance.exp()).sum()
        plain_optimizer.zero_grad()
        ((error + divergence) / ROWS).backward()
        plain_optimizer.step()
    assert_equal_weights(module, plain)


@pytest.mark.filterwarnings("ignore::fleet.errors.NetworkWarning")
def test_simclr_equals_a_plain_loop():
    import torch
    from torch.nn.functional import cosine_similarity

    optimizer = {"name": "adam", "learning_rate": 0.003}
    plain, module = trained("simclr", sample_of(), optimizer=optimizer)
    view = importlib.import_module("simclr").view
    plain_optimizer = torch.optim.Adam(plain.parameters(), lr=0.003)
    for step, (images, _) in enumerate(scaled_batches(0.5, 0.5)):
        with seeded(step):
            codes = torch.cat([plain(view(images)), plain(view(images))])
        loss = 0
        for first in range(2 * ROWS):
            similarities = cosine_similarity(codes[first : first + 1], codes) / 0.5
            negatives = torch.arange(2 * ROWS) != first
            partner = similarities[(first + ROWS) % (2 * ROWS)]
            loss = loss + (similarities[negatives].logsumexp(0) - partner) / (2 * ROWS)
        plain_optimizer.zero_grad()
        loss.backward()
        plain_optimizer.step()
    assert_equal_weights(module, plain)


def test_gan_equals_a_plain_loop():
    import torch
    from torch.nn.functional import binary_cross_entropy_with_logits as cross_entropy

    plain, module = trained("gan", sample_of(), optimizers="gan:optimizers")
    generator, discriminator = plain["generator"], plain["discriminator"]
    optimizers = [
        torch.optim.Adam(part.parameters(), lr=2e-4, betas=(0.5, 0.999))
        for part in (discriminator, generator)
    ]
    real_labels, fake_labels = torch.ones(ROWS, 1), torch.zeros(ROWS, 1)
    for step, (images, _) in enumerate(scaled_batches(0.5, 0.5)):
        with seeded(step):
            noise = torch.randn(ROWS, 16)
        fake = generator(noise)
        loss = cross_entropy(discriminator(images.flatten(1)), real_labels)
        loss = (loss + cross_entropy(discriminator(fake.detach()), fake_labels)) / 2
        optimizers[0].zero_grad()
        loss.backward()
        optimizers[0].step()
        loss = cross_entropy(discriminator(fake), real_labels)
        optimizers[1].zero_grad()
        loss.backward()
        optimizers[1].step()
    assert_equal_weights(module, plain)


def test_distillation_equals_a_plain_loop(tmp_path, monkeypatch):
    import torch

    monkeypatch.setenv("TEACHER", str(tmp_path / "best.safetensors"))
    sample = sample_of(target=class_target(10))
    content = {
        "models": [{"build": "distillation:network"}],
        "resources": {"engine": "torch"},
        "output": str(tmp_path),
    }
    [network] = parse(content).networks
    trainable = make_engine(parse(content), sample, None, 0, 1).build(network, SingleRankGroup())
    trainable.export(trainable.state(), tmp_path / "best.safetensors")
    teacher = trainable.module.eval()

    optimizer = {"name": "adam", "learning_rate": 0.003}
    plain, module = trained("distillation", sample, {"width": 4}, optimizer=optimizer)
    plain_optimizer = torch.optim.Adam(plain.parameters(), lr=0.003)
    for images, labels in scaled_batches(0.5, 0.5):
        logits = plain(images)
        soft_labels = torch.softmax(teacher(images).detach() / 2, 1)
        imitation = torch.nn.KLDivLoss(reduction="batchmean")(
            torch.log_softmax(logits / 2, 1), soft_labels
        )
        loss = 0.7 * 4 * imitation + 0.3 * torch.nn.CrossEntropyLoss()(logits, labels)
        plain_optimizer.zero_grad()
        loss.backward()
        plain_optimizer.step()
    assert_equal_weights(module, plain)


def sentences_of(count):
    """Return a pipeline of some sentences, which are padded; and their tokens."""
    source = importlib.import_module("transformer").Sentences()
    source.sentences = source.sentences[:count]
    tokens = [source.read(index)["tokens"][:40] for index in range(count)]
    measured = Measured(
        with_requested_targets(source, TargetWish("none")),
        {"tokens": np.array([len(row) for row in tokens])},
    )
    pads = [Pad("tokens", 40, varies=True)]
    transforms = parse_record_transforms({}, measured, pads=pads)
    sample = infer_sample_spec(measured, transforms, SEED)
    return make_pipeline(measured, transforms, SEED, sample), tokens


def test_transformer_equals_a_plain_loop_without_padding():
    import torch
    from torch.nn.functional import cross_entropy

    pipeline, tokens = sentences_of(BATCHES * ROWS)
    lengths = pipeline.lengths
    assert lengths.min() < lengths.max() == 40

    def batches():
        for epoch in range(EPOCHS):
            for rows in pipeline.order(epoch).reshape(BATCHES, ROWS):
                inputs, targets = pipeline.empty(ROWS)
                pipeline.load(rows, epoch, inputs, targets)
                yield cut_rows(inputs, {"tokens": int(lengths[rows].max())}), targets, rows

    # Adam would blow up the rounding error of biases of keys, whose gradient is 0.
    optimizer = {"name": "sgd", "learning_rate": 0.1, "momentum": 0.9}
    args = {"width": 8, "layers": 1, "heads": 2}
    plain, module = trained("transformer", pipeline.sample, args, batches, optimizer=optimizer)
    plain_optimizer = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9)
    for _, _, rows in batches():
        plain_optimizer.zero_grad()
        for row in rows:
            sentence = torch.from_numpy(tokens[row])[None]
            logits = plain(sentence, torch.ones_like(sentence))[0, :-1]
            (cross_entropy(logits, sentence[0, 1:]) / ROWS).backward()
        plain_optimizer.step()
    assert_equal_weights(module, plain)
