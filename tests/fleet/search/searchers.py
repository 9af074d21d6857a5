"""User-defined searchers for tests, by import path."""

import random
import threading


class Careful:
    """Proposes near the best so far, judges at random by all earlier calls, pauses and resumes."""

    def __init__(self, space, seed, mode, pauses=True):
        self.space = space
        self.random = random.Random(seed)
        self.pauses = pauses
        self.best = 0.0
        self.paused = []

    def ask(self, number):
        if self.random.random() < 0.1:
            return None
        return {
            "train.optimizer.learning_rate": self.space["train.optimizer.learning_rate"].at(
                0.5 * self.random.random() + 0.4 * min(1.0, max(0.0, self.best))
            )
        }

    def report(self, number, epoch, value):
        self.best = max(self.best, value)
        drawn = self.random.random()
        if self.pauses and drawn < 0.15:
            self.paused.append(number)
            return "pause"
        return "stop" if drawn > 0.9 else "go_on"

    def resume(self):
        return self.paused.pop(0) if self.paused and self.random.random() < 0.5 else None

    def tell(self, number, outcome, value):
        self.best = max(self.best, value or 0.0)
        if number in self.paused:
            self.paused.remove(number)


class Scripted:
    """Returns prepared answers, or raises them."""

    def __init__(self, space, seed, mode, asks=(), reports=None, resumes=()):
        self.asks = list(asks)
        self.reports = dict(reports or {})
        self.resumes = list(resumes)
        self.tells = []

    def ask(self, number):
        answer = self.asks.pop(0) if self.asks else None
        if isinstance(answer, Exception):
            raise answer
        return answer

    def report(self, number, epoch, value):
        self.tells.append(("report", number, epoch, value))
        answer = self.reports.get((number, epoch), "go_on")
        if isinstance(answer, Exception):
            raise answer
        return answer

    def resume(self):
        return self.resumes.pop(0) if self.resumes else None

    def tell(self, number, outcome, value):
        self.tells.append((outcome, number, value))


class Raising(Scripted):
    """Proposes two networks, then raises."""

    def ask(self, number):
        if number == 2:
            raise RuntimeError("out of ideas")
        return {"train.optimizer.learning_rate": 0.01 * (number + 1)}


class Hanging(Scripted):
    """Proposes two networks, then hangs."""

    def ask(self, number):
        if number == 2:
            threading.Event().wait(30)
        return {"train.optimizer.learning_rate": 0.01 * (number + 1)}


class Unmade(Scripted):
    """Hangs in its constructor."""

    def __init__(self, space, seed, mode):
        threading.Event().wait(30)
