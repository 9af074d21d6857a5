"""Training steps that tests name in specs, good and bad. Only the functions import PyTorch."""


def two_heads(input_shape, classes, units=3):
    """Return a module that returns a tuple, as an autoencoder does."""
    from math import prod

    import torch

    class Heads(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = torch.nn.Linear(prod(input_shape), units)
            self.decoder = torch.nn.Linear(units, prod(input_shape))

        def forward(self, images):
            code = self.encoder(images.flatten(1))
            return self.decoder(code), code

    return Heads()


def parts(input_shape, classes):
    """Return networks in a module that cannot be called."""
    from math import prod

    from torch import nn

    return nn.ModuleDict(
        {
            "body": nn.Sequential(nn.Flatten(), nn.Linear(prod(input_shape), 6), nn.ReLU()),
            "head": nn.Linear(6, classes),
        }
    )


def classify(model, batch, training):
    from torch.nn.functional import cross_entropy

    outputs = model(batch["input"])
    return {
        "loss": cross_entropy(outputs, batch["target"], reduction="none"),
        "accuracy": outputs.argmax(-1) == batch["target"],
    }


def classify_with_parts(model, batch, training):
    from torch.nn.functional import cross_entropy

    outputs = model["head"](model["body"](batch["input"]))
    return cross_entropy(outputs, batch["target"], reduction="none")


def reconstruct(model, batch, training):
    """Return a loss of two terms, one of which is a metric; and a metric of evaluation."""
    restored, code = model(batch["input"])
    errors = (restored - batch["input"].flatten(1)).square().sum(-1)
    penalty = code.square().sum(-1)
    result = {"loss": errors + 0.1 * penalty, "penalty": penalty}
    if not training:
        result["largest"] = code.abs().amax()
    return result


def one_number(model, batch, training):
    from torch.nn.functional import cross_entropy

    return cross_entropy(model(batch["input"]), batch["target"])


def index_as_loss(model, batch, training):
    """Return the index of each sample as its loss, with a gradient of 0."""
    return batch["index"] + 0 * model(batch["input"]).sum(-1)


def infinite_if_black(model, batch, training):
    losses = classify(model, batch, training)["loss"]
    return losses / batch["input"].flatten(1).amax(-1).add(1)


def missing_name(model, batch, training):
    return model(batch["image"])


def wrong_shape(model, batch, training):
    return model(batch["input"])


def no_loss(model, batch, training):
    return {"error": model(batch["input"]).sum(-1)}


def no_number(model, batch, training):
    return {"loss": model(batch["input"]).sum(-1), "note": "text"}


def taken_name(model, batch, training):
    return {"loss": model(batch["input"]).sum(-1), "seconds": 1.0}


def detached(model, batch, training):
    return model(batch["input"]).sum(-1).detach()


def two_arguments(model, batch):
    return model(batch["input"]).sum(-1)


def not_a_number(model, batch, training):
    return model(batch["input"]).sum(-1) * float("nan")


def constant(model, batch, training):
    return 0 * model(batch["input"]).sum(-1)


def optimizers(model):
    import torch

    return {
        "body": torch.optim.Adam(model["body"].parameters(), lr=1e-2),
        "head": torch.optim.SGD(model["head"].parameters(), lr=1e-1, momentum=0.9),
    }


def optimizers_of_names(named_parameters):
    import torch

    return {
        part: torch.optim.SGD([value for name, value in named_parameters if part in name], lr=0.1)
        for part in ("body", "head")
    }


def shared_parameter(model):
    import torch

    return {
        "body": torch.optim.SGD(model.parameters(), lr=0.1),
        "head": torch.optim.SGD(model["head"].parameters(), lr=0.1),
    }


def single_optimizer(model):
    import torch

    return torch.optim.SGD(model.parameters(), lr=0.1)


def foreign_parameter(model):
    import torch

    return {"body": torch.optim.SGD([torch.nn.Parameter(torch.zeros(3))], lr=0.1)}


def loss_of_each_part(model, batch, training):
    """Return a loss for each optimizer; that of the body also depends on the head."""
    from torch.nn.functional import cross_entropy

    features = model["body"](batch["input"])
    outputs = model["head"](features)
    errors = cross_entropy(outputs, batch["target"], reduction="none")
    return {
        "body": errors + features.square().mean(1),
        "head": errors,
        "size": outputs.abs().sum(1),
    }


def overflow_of_head(model, batch, training):
    """Return losses of which one has gradients that float16 cannot hold."""
    losses = loss_of_each_part(model, batch, training)
    return {**losses, "head": losses["head"] * 1e4}


def loss_of_one_part(model, batch, training, optimizer):
    """Return the losses of :func:`loss_of_each_part`, of one part if an optimizer steps."""
    losses = loss_of_each_part(model, batch, training)
    return losses if optimizer is None else losses[optimizer]
