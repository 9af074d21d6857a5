"""A schedule of PyTorch that tests name in specs."""

from torch.optim.lr_scheduler import LRScheduler


class Wave(LRScheduler):
    """Halve the learning rate in every second half of a period."""

    def __init__(self, optimizer, period):
        self.period = period
        super().__init__(optimizer)

    def get_lr(self):
        is_high = self.last_epoch % self.period < self.period / 2
        return [rate if is_high else rate / 2 for rate in self.base_lrs]
