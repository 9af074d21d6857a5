"""Tell which key of a spec is meant by a misspelt one, or by a word of another tool."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any, get_args

from pydantic.fields import FieldInfo

from fleet.spec.model import FAMILIES
from fleet.spec.old_keys import SHORT_KEYS
from fleet.spec.origin import key_path
from fleet.spec.schema import Document
from preprocess.transforms import TRANSFORMS

# Keys -> words of other tools that mean one of them: of Optuna, Ray Tune, Keras and Keras Tuner,
# PyTorch and PyTorch Lightning, DeepHyper, and sweeps of Weights & Biases. Where several keys are
# possible, the one nearest to the place of the word is meant, else the first. Upper case and
# underscores do not count.
_WORDS: Mapping[str, str] = {
    # searches
    "models.search.max_trials": (
        "n_trials num_trials max_trials trials num_samples n_samples max_evals num_evals run_cap "
        "max_runs n_iter n_calls"
    ),
    "models.space": (
        "search_space param_space parameter_space space config hyperparameters hparams parameters "
        "params problem hp"
    ),
    "models.search.sampler": (
        "sampler search_alg search_algorithm algorithm method tuner surrogate_model"
    ),
    "models.search.max_concurrent": (
        "n_jobs max_concurrent_trials concurrency parallelism parallel_trials"
    ),
    "models.search.repeats": "executions_per_trial",
    "prune.min_trials models.search.options": "n_startup_trials",
    "models.search.options": "n_initial_points sampler_options acq_func kappa xi",
    "models.search.warm_start": "points_to_evaluate load_if_exists",
    "train.stopping.monitor models.search.objectives.value": "metric metric_name objective monitor",
    "train.stopping.direction models.search.objectives.mode": "mode goal direction sense",
    "models.search.objectives": "directions objectives",
    # pruning
    "prune.rule": "pruner pruning early_terminate trial_scheduler",
    "prune.rule train.optimizer.learning_rate": "scheduler",
    "prune.min_epochs": "grace_period min_resource n_warmup_steps min_iter min_t",
    "prune.min_trials": "n_min_trials min_samples_required",
    "prune.factor": "reduction_factor eta",
    # epochs, and the end of training
    "train.epochs": (
        "epoch epochs n_epochs num_epochs nb_epochs max_epoch max_t max_iter max_resource "
        "training_iteration num_train_epochs total_epochs iterations"
    ),
    "train.stopping.patience": (
        "early_stopping early_stop early_stopping_patience early_stopping_rounds"
    ),
    "train.stopping": "callbacks stop stopping_criteria",
    "train.stopping.max_time walltime": "time_limit max_time",
    # batches and gradients
    "train.batch_size": (
        "batch_size bs train_batch_size per_device_train_batch_size mini_batch_size "
        "global_batch_size"
    ),
    "train.batch.accumulate": (
        "accumulate_grad_batches gradient_accumulation_steps accumulation_steps"
    ),
    "train.optimizer.global_clipnorm": (
        "gradient_clip_val max_grad_norm grad_clip clip_grad_norm gradient_clip"
    ),
    # optimizers and losses
    "train.optimizer": "optimiser optim opt optimizer",
    "train.optimizer.learning_rate": (
        "lr learning_rate lrate initial_lr base_lr max_lr init_lr lr_scheduler lr_schedule "
        "learning_rate_schedule learning_rate_scheduler"
    ),
    "train.optimizer.weight_decay": "wd weight_decay l2",
    "train.loss": "loss_fn loss_function criterion",
    "train.class_weights": "class_weight",
    "train.label_smoothing": "smoothing",
    "train.precision": "amp fp16 bf16 mixed_precision dtype",
    "train.xla": "jit_compile",
    "train.compile": "torch_compile",
    "train.step": "train_step training_step",
    "train.start": "pretrained weights checkpoint_path ckpt_path initial_weights load_from",
    # data
    "data.validation": (
        "val_split validation_split validation_data val_data valid_data val validation_size "
        "val_size validation_fraction val_dir val_path validation_path validation_dir"
    ),
    "data.test": "test_split test_size test_data test_dir test_path",
    "data.folds": "cv n_splits kfold n_folds cross_validation",
    "data.path": (
        "data_dir data_path dataset_path dataset_dir train_dir train_data train_path root "
        "directory data_root"
    ),
    "train data.path": "train",
    "data.source": "dataset data_source loader",
    "data.transforms": (
        "augmentation augmentations augment transform preprocessing normalize normalization "
        f"rescale image_size img_size input_size target_size {' '.join(TRANSFORMS)}"
    ),
    "data.target": "targets label labels y label_mode class_mode",
    "data.target.outputs": "num_classes n_classes",
    "data.target.names": "class_names",
    # networks
    "models": "model networks network model_list",
    "models.family": "arch architecture backbone model_name model_type",
    "models.build": "module function class_path model_fn build_fn",
    "models.args": "arguments kwargs model_args model_kwargs model_config",
    "models.count": "n_models num_models n_networks replicas",
    # a range of a space
    "models.space.low": "min minimum lower",
    "models.space.high": "max maximum upper",
    "models.space.log": "log_scale logarithmic sampling",
    "models.space.choices": "values categories",
    "models.space.integer": "int is_integer",
    "models.space.step": "q",
    # machines
    "models.gpus": ("gpus_per_trial resources_per_trial gpu devices num_gpus n_gpus num_devices"),
    "resources.preprocessors": "num_workers n_workers workers prefetch cpus_per_trial",
    "resources.engine": "backend framework",
    "schedule.policy": "strategy",
    "retries": "max_failures max_retries",
    # the run
    "name": "study_name project project_name experiment experiment_name run_name",
    "seed": "random_state random_seed manual_seed seed_everything",
    "output": (
        "output_dir out_dir save_dir log_dir local_dir storage_path default_root_dir "
        "checkpoint_dir run_dir storage"
    ),
    "trackers": "logger loggers tracking report_to",
    "walltime train.stopping.max_time": "timeout time_budget_s max_duration wall_time",
    "checkpoint.every": "checkpoint_freq checkpoint_frequency save_every save_freq",
    "checkpoint.keep": "save_top_k keep_checkpoints_num num_to_keep",
}


def keys_of(section: Any) -> Mapping[Any, FieldInfo]:
    """Return the keys of a section; none for anything else."""
    return getattr(section, "__pydantic_fields__", {})


def sections_in(annotation: Any) -> Iterator[Any]:
    """Yield the sections among the values that an annotation allows."""
    if keys_of(annotation):
        yield annotation
    for part in get_args(annotation):
        yield from sections_in(part)


def find_meant_key(
    word: str, path: Sequence[Any], owner: Any, content: Any, in_document: bool
) -> tuple[str, bool]:
    """Return the key that is meant by one that a section does not have.

    Args:
        word: the unknown key.
        path: the key path of the section, from the top of the document or from an entry.
        owner: the section.
        content: the keys that are given there.
        in_document: whether the path begins at the top of the document.

    Returns:
        The path of the key as users write it at this place, and whether it is certain; an empty
        text if no key is close.
    """
    section = _paths_of_sections().get(owner, "")
    plain = _plain(word)
    family = FAMILIES.get(str(content.get("family"))) if isinstance(content, Mapping) else None
    near = {_plain(name): f"models.args.{name}" for name in keys_of(family)}
    near |= {_plain(name): f"{section}.{name}".removeprefix(".") for name in keys_of(owner)}
    far = {**_keys_by_name(), **_keys_by_word()}
    is_certain = plain in near or plain in far
    if plain in near:
        meant = near[plain]
    elif plain in far:
        meant = _nearest(far[plain], section)
        is_certain = plain in _keys_by_word() or len(far[plain]) == 1
    else:
        close = difflib.get_close_matches(plain, near, n=1)
        closer = difflib.get_close_matches(plain, far, n=1, cutoff=0.8)
        if closer and not (close and _likeness(plain, close[0]) >= _likeness(plain, closer[0])):
            meant = _nearest(far[closer[0]], section)
        elif close:
            meant = near[close[0]]
        else:
            return "", False
    text = _write(meant, path, section, in_document).replace("objectives.", "objectives[0].")
    if meant in SHORT_KEYS:
        text += f" (short for {_write(SHORT_KEYS[meant], path, section, in_document)})"
    return text, is_certain


def hint_at_key(word: str) -> str:
    """Return a hint at the key that is meant by an argument that a network does not take.

    >>> hint_at_key("lr")
    ' (did you mean train.optimizer.learning_rate?)'
    """
    key, is_certain = find_meant_key(word, (), None, {}, in_document=False)
    return f" (did you mean {key}?)" if is_certain else ""


def _plain(word: str) -> str:
    """Return a word without what is written differently: ``batchSize`` is like ``batch_size``."""
    return word.lower().replace("_", "").replace("-", "")


def _likeness(word: str, candidate: str) -> float:
    return difflib.SequenceMatcher(None, word, candidate).ratio()


def _nearest(keys: Sequence[str], section: str) -> str:
    """Return the key that shares most of its path with a section; of several, the first.

    >>> _nearest(("prune.rule", "train.optimizer.learning_rate"), "train")
    'train.optimizer.learning_rate'
    """
    steps = section.split(".")

    def shared(key: str) -> int:
        pairs = zip(key.split("."), steps, strict=False)
        return next((depth for depth, (a, b) in enumerate(pairs) if a != b), len(steps))

    return max(keys, key=shared)


def _write(key: str, path: Sequence[Any], section: str, in_document: bool) -> str:
    """Write the path of a key as it is valid at a place.

    Args:
        key: its dotted path, without the numbers of entries.
        path: key path of the section where it is mentioned.
        section: the dotted path of this section.
        in_document: whether `path` begins at the top of the document, and not at an entry.
    """
    if section == "models.args" and key.startswith("models.args."):
        return key.removeprefix("models.args.")  # in `args`, and in a space
    if section and key.startswith(f"{section}."):
        return f"{key_path(path)}{key.removeprefix(section)}".removeprefix(".")
    entry = ""
    if in_document:
        number = path[1] if len(path) > 1 and path[0] == "models" else 0
        entry = f"models[{number}]."
    if key.startswith("models."):
        return entry + key.removeprefix("models.")
    is_of_entries = key.startswith(("train", "data.transforms", "data.target"))
    if in_document and path[:1] == ("models",) and is_of_entries:
        return entry + key
    return key


@cache
def _keys_by_word() -> dict[str, tuple[str, ...]]:
    """Return word of another tool -> the keys that it may mean."""
    return {
        _plain(word): tuple(keys.split())
        for keys, words in _WORDS.items()
        for word in words.split()
    }


@cache
def _keys_by_name() -> dict[str, tuple[str, ...]]:
    """Return name of a key -> the dotted paths of all keys with this name, short ones first."""
    keys: dict[str, list[str]] = {}
    for section, path in _paths_of_sections().items():
        if path.startswith("models.args"):
            continue  # arguments of one family mean nothing to another one
        for name in keys_of(section):
            keys.setdefault(_plain(name), []).append(f"{path}.{name}".removeprefix("."))
    return {
        name: tuple(sorted(paths, key=lambda path: path.count("."))) for name, paths in keys.items()
    }


@cache
def _paths_of_sections() -> dict[Any, str]:
    """Return section -> its dotted path, without numbers and names."""
    paths: dict[Any, str] = dict.fromkeys(FAMILIES.values(), "models.args")
    waiting: list[tuple[Any, str]] = [(Document, "")]
    while waiting:
        section, path = waiting.pop(0)
        if section in paths:
            continue
        paths[section] = path
        for name, key in keys_of(section).items():
            below = f"{path}.{name}".removeprefix(".")
            waiting += [(part, below) for part in sections_in(key.annotation)]
    return paths
