"""Modules that tests name in specs, good and bad. Only the functions import PyTorch."""


def dense(input_shape, classes, units=8):
    from math import prod

    from torch import nn

    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(prod(input_shape), units),
        nn.ReLU(),
        nn.Dropout(0.2),
        nn.Linear(units, classes),
    )


def convolutional(input_shape, outputs, filters=4):
    from torch import nn

    return nn.Sequential(
        nn.Conv2d(input_shape[2], filters, 3),
        nn.BatchNorm2d(filters),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.LazyLinear(outputs),
    )


def viewing(input_shape, classes):
    """Return a module that calls ``view``, so it requires contiguous input."""
    from math import prod

    import torch

    class Viewing(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(prod(input_shape), classes)

        def forward(self, images):
            return self.linear(images.view(len(images), -1))

    return Viewing()


def embedding(input_shape, classes):
    from torch import nn

    return nn.Sequential(nn.Embedding(50, 4), nn.Flatten(), nn.Linear(4 * input_shape[0], classes))


def normalized(input_shape, classes):
    from torch import nn

    return nn.Sequential(dense(input_shape, 6), nn.BatchNorm1d(6), nn.Linear(6, classes))


def zero(input_shape, classes):
    """Return a module whose head is initialized with zeros."""
    from torch import nn

    module = dense(input_shape, classes)
    for parameter in module[-1].parameters():
        nn.init.zeros_(parameter)
    return module


def short_of_memory(input_shape, classes, flag):
    """Return a module whose first training step runs out of memory and creates the file `flag`."""
    from pathlib import Path

    import torch

    class Short(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = dense(input_shape, classes)

        def forward(self, images):
            if self.training and not Path(flag).exists():
                Path(flag).touch()
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
            return self.inner(images)

    return Short()


def segmenting(input_shape, classes):
    from torch import nn

    return nn.Sequential(nn.LazyConv2d(4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, classes, 1))


def sparse(input_shape, classes):
    from torch import nn

    return nn.Sequential(
        nn.Embedding(50, 4, sparse=True), nn.Flatten(), nn.Linear(4 * input_shape[0], classes)
    )


def probable(input_shape, classes):
    from torch import nn

    return nn.Sequential(dense(input_shape, classes), nn.Softmax(-1))


def of_another_size(input_shape, classes):
    return dense(input_shape, classes + 1)


def no_module(input_shape, classes):
    return 7


def raising(input_shape, classes):
    raise ValueError("no luck")


def frozen(input_shape, classes):
    module = dense(input_shape, classes)
    module.requires_grad_(False)
    return module


def absolute(targets, outputs):
    return (outputs - targets).abs()


def one_number(targets, outputs):
    return (outputs - targets).abs().mean()


def counting(parameters, lr):
    """Return an optimizer that counts its steps in its parameter groups."""
    import torch

    class Counting(torch.optim.SGD):
        def step(self, closure=None):
            self.param_groups[0]["steps"] = self.param_groups[0].get("steps", 0) + 1
            return super().step(closure)

    return Counting(parameters, lr=lr)


def momentum(parameters, learning_rate, decay=0.0):
    import torch

    return torch.optim.SGD(parameters, lr=learning_rate, momentum=0.9, weight_decay=decay)


def renormalizing(input_shape, classes):
    """Return a module whose forward replaces the data of a weight."""
    from math import prod

    import torch

    class Renormalizing(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.body = torch.nn.Linear(prod(input_shape), 6)
            self.head = torch.nn.Linear(6, classes)

        def forward(self, images):
            self.body.weight.data = torch.renorm(self.body.weight.data, 2, 0, 0.7)
            return self.head(self.body(images.flatten(1)).relu())

    return Renormalizing()


def replacing(input_shape, classes):
    """Return a module whose forward replaces a parameter, so no optimizer trains it."""
    from math import prod

    import torch

    class Replacing(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.body = torch.nn.Linear(prod(input_shape), classes)

        def forward(self, images):
            self.body.weight = torch.nn.Parameter(self.body.weight.detach() * 0.9)
            return self.body(images.flatten(1))

    return Replacing()


def overwriting(input_shape, classes):
    """Return a module whose forward writes into its input."""
    from math import prod

    import torch

    class Overwriting(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(prod(input_shape), classes)

        def forward(self, images):
            images -= images.mean()
            images[:, 0] = 2
            return self.linear(images.flatten(1))

    return Overwriting()


def gated(input_shape, classes, gate="", inner=False):
    """Return a module that applies a function of ``torch`` to its logits.

    Args:
        input_shape: shape of a sample.
        classes: number of outputs.
        gate: name of the function, such as ``sigmoid``; empty to return logits.
        inner: True to apply a sigmoid to the inputs.
    """
    from math import prod

    import torch

    class Gated(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(prod(input_shape), classes)
            self.inner = torch.nn.Sigmoid()

        def forward(self, images):
            images = images.flatten(1)
            logits = self.linear(self.inner(images) if inner else images)
            return getattr(torch, gate)(logits) if gate else logits

    return Gated()


def with_spare_parts(input_shape, classes):
    """Return a module with a layer that is never used and one that is used in some steps."""
    from math import prod

    import torch

    class Spare(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.body = torch.nn.Linear(prod(input_shape), classes)
            self.spare = torch.nn.Linear(4, 4)
            self.extra = torch.nn.Linear(prod(input_shape), classes)
            self.calls = 0

        def forward(self, images):
            images = images.flatten(1)
            outputs = self.body(images)
            if self.training:
                self.calls += 1
                if self.calls % 2:
                    outputs = outputs + self.extra(images)
            return outputs

    return Spare()


def reversed_error(outputs, targets, power=2):
    """Return a loss of (outputs, targets); it writes into both."""
    outputs -= 0.5 * targets
    targets *= 0.5
    return (outputs - targets).abs() ** power


def unclear_error(first, second):
    return 2 * (first - second) ** 2 + 0 * first


_TABLES = {}


def tabled(input_shape, classes):
    """Return a module that adds a table that all modules of a process share."""
    from math import prod

    import torch

    class Tabled(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(prod(input_shape), classes)
            if classes not in _TABLES:
                _TABLES[classes] = torch.arange(float(classes))
            self.table = _TABLES[classes]

        def forward(self, images):
            return self.linear(images.flatten(1)) + self.table

    return Tabled()


def train_without_return(input_shape, classes):
    from torch import nn

    class Silent(nn.Sequential):
        def train(self, mode=True):
            super().train(mode)

    return Silent(dense(input_shape, classes))


def packed_tokens(input_shape, classes):
    """Return a module that needs a token other than 0 in each sample."""
    import torch
    from torch import nn

    class Packed(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding, self.gru = nn.Embedding(3, 4), nn.GRU(4, 4, batch_first=True)
            self.linear = nn.Linear(4, classes)

        def forward(self, tokens):
            lengths = (tokens != 0).sum(1).cpu()
            packed = torch.nn.utils.rnn.pack_padded_sequence(
                self.embedding(tokens), lengths, batch_first=True, enforce_sorted=False
            )
            return self.linear(self.gru(packed)[1][-1])

    return Packed()


def drawing(input_shape, classes):
    """Return a module that draws even in evaluation, like a variational autoencoder."""
    import torch

    class Drawing(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = dense(input_shape, classes)

        def forward(self, images):
            means = self.inner(images)
            return means + torch.randn_like(means)

    return Drawing()


def differentiating(input_shape, outputs, enables=False):
    """Return a module whose outputs are derivatives by its inputs; it may enable gradients."""
    import torch

    class Differentiating(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = dense(input_shape, 1)

        def forward(self, points):
            if enables:
                torch.set_grad_enabled(True)
            points.requires_grad_(True)
            value = torch.tanh(self.inner(points)).sum()
            return torch.autograd.grad(value, points, create_graph=True)[0][:, :outputs]

    return Differentiating()


def adding_zeros(input_shape, classes):
    import torch

    class Adding(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = dense(input_shape, classes)

        def forward(self, images):
            return self.inner(images) + torch.zeros(len(images), classes)

    return Adding()


def row_by_row(input_shape, classes):
    import torch

    class Rows(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = dense(input_shape, classes)

        def forward(self, images):
            return torch.cat([self.inner(row[None]) for row in images])

    return Rows()


def transposed(input_shape, classes):
    """Return a module with a buffer that is a transposed view."""
    from math import prod

    import torch

    module = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(prod(input_shape), classes))
    module.register_buffer("transposed", torch.randn(3, 2).t())
    return module


def three_inputs(input_shape, classes):
    """Return a module that takes an image, facts and tokens by keyword."""
    from math import prod

    import torch

    class Three(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.image = torch.nn.Linear(prod(input_shape["image"]), 4)
            self.facts = torch.nn.Linear(*input_shape["facts"], 4)
            self.words = torch.nn.Embedding(8, 4)
            self.head = torch.nn.Linear(12, classes)

        def forward(self, image, facts, tokens):
            parts = [
                self.image(image.flatten(1)),
                self.facts(facts),
                self.words(tokens).mean(1),
            ]
            return self.head(torch.cat(parts, 1).relu())

    return Three()


def one_of_three_inputs(input_shape, classes):
    """Return a module that takes an image alone."""
    from math import prod

    from torch import nn

    return nn.Sequential(nn.Flatten(), nn.Linear(prod(input_shape["image"]), classes))


def plain_adam(parameters, learning_rate, betas=(0.9, 0.999)):
    """Return an optimizer; the function takes no weight decay."""
    import torch

    return torch.optim.Adam(parameters, lr=learning_rate, betas=betas, foreach=True)


def biased(named_parameters, lr):
    """Return an optimizer of biases only."""
    import torch

    return torch.optim.SGD(
        [parameter for name, parameter in named_parameters if name.endswith(".bias")], lr=lr
    )


def alternating(parameters, lr):
    """Return an optimizer that counts, in plain numbers, and skips every second step."""
    import torch

    class Alternating(torch.optim.Optimizer):
        def __init__(self, parameters, lr):
            super().__init__(parameters, {"lr": lr})

        @torch.no_grad()
        def step(self, closure=None):
            for group in self.param_groups:
                for parameter in group["params"]:
                    if parameter.grad is None:
                        continue
                    state = self.state[parameter]
                    state["count"] = state.get("count", 0) + 1
                    if state["count"] % 2:
                        parameter.sub_(parameter.grad, alpha=group["lr"])

    return Alternating(parameters, lr)


def falling(step, start):
    """Return a learning rate that falls with each step."""
    return start / (1 + step)


def watching(step, monitored):
    """Return the last monitored value as the learning rate."""
    return monitored[-1] if monitored else 1.0


def halving(step):
    """Return a factor of the learning rate."""
    return 0.5**step
