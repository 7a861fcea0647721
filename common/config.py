"""The run's configuration: flat kebab-case keys, validated before any work starts.

The same keys come from the Flower app's run-config, from `-c key=value` and from TOML files.
"""

import difflib
import hashlib
import json
from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from common.combinations import impossible
from common.errors import GreedyfedError
from common.partition import Scheme

Scalar = bool | int | float | str


class ConfigError(GreedyfedError):
    """One line for each wrong key: the key, its value, the rule and the remedy."""


def _kebab(name: str) -> str:
    return name.replace("_", "-")


def _toml(value: object) -> str:
    """A value as the user writes it."""
    shown = isinstance(value, bool | str)
    return json.dumps(value, ensure_ascii=False) if shown else repr(value)


class _Part(BaseModel):
    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        alias_generator=_kebab,
        populate_by_name=True,
        allow_inf_nan=False,
    )


class DataConfig(_Part):
    """Which data, and how it is split over simulated clients."""

    dataset: Literal["digits", "mnist", "fmnist", "cifar10", "synthetic", "own"] = Field(
        "digits", description="data set; `digits` ships with scikit-learn, `own` is yours"
    )
    data_dir: str = Field(
        "", description="where the data set's files lie (mnist, fmnist, cifar10; own: the server's)"
    )
    download: bool = Field(False, description="allow a download into data-dir")
    num_clients: int = Field(
        0, ge=0, le=100_000, description="clients N; 0: in Flower as many as nodes, in process 10"
    )
    partition: Scheme = Field(
        "dirichlet", description="label split: `dirichlet`, `dirichlet-float32` or `iid`"
    )
    dirichlet_alpha: float = Field(0.5, gt=0, description="Dirichlet concentration α of the labels")
    min_examples_per_client: int = Field(
        30, ge=0, description="every client gets more examples than this"
    )
    validation_size: int = Field(
        0, ge=0, description="server's validation examples; 0: half of the held-out ones"
    )
    synthetic_alpha: float = Field(1.0, ge=0, description="`synthetic`: spread of client models")
    synthetic_beta: float = Field(1.0, ge=0, description="`synthetic`: spread of client inputs")


class TrainingConfig(_Part):
    """The model and the clients' local SGD."""

    model: str = Field(
        "auto",
        min_length=1,
        description="`auto`, `mlp`, `cnn`, `logistic` or `package.module:factory`",
    )
    local_epochs: int = Field(5, ge=1, le=10**6, description="local epochs E")
    batches_per_epoch: int = Field(5, ge=1, description="mini-batches B per local epoch")
    learning_rate: float = Field(0.01, gt=0, description="learning rate η of local SGD")
    momentum: float = Field(0.5, ge=0, lt=1, description="momentum γ of local SGD")
    proximal_mu: float = Field(0.0, ge=0, description="FedProx μ; 0: no proximal term")


class HeterogeneityConfig(_Part):
    """Simulated stragglers and parameter noise."""

    straggler_fraction: float = Field(0.0, ge=0, le=1, description="share x of stragglers")
    noise_sigma: float = Field(
        0.0,
        ge=0,
        le=1e100,
        description="largest noise level σ; client k of N gets (k−1)σ/N, in random order",
    )
    clip_norm: float = Field(
        0.0, ge=0, description="largest L2 norm of a client's update, before the noise; 0: no limit"
    )
    privacy_delta: float = Field(
        0.0, ge=0, lt=1, description="δ at which each client's spent ε is reported; 0: not reported"
    )


class SelectionConfig(_Part):
    """Which clients take part in a round, and what their values become."""

    algorithm: Literal[
        "greedyfed",
        "greedyfed-classes",
        "ucb",
        "sfedavg",
        "fedavg",
        "fedprox",
        "power-of-choice",
        "centralised",
    ] = Field("greedyfed", description="one of the algorithms below")
    clients_per_round: int = Field(3, ge=1, description="cohort size M")
    cumulative: Literal["mean", "exponential", "exponential-from-zero"] = Field(
        "mean",
        description="cumulative value: running `mean`, or `exponential` average "
        "(`exponential-from-zero`: as in the paper's released code)",
    )
    cumulative_alpha: float = Field(
        0.5, ge=0, le=1, description="weight α of the past in the exponential average"
    )
    ucb_beta: float = Field(0.1, ge=0, description="`ucb`: weight β of exploration")
    sfedavg_alpha: float = Field(
        0.75, ge=0, le=1, description="`sfedavg`: weight α of the past in its average"
    )
    poc_decay: float = Field(
        0.9, gt=0, le=1, description="`power-of-choice`: decay of the number of candidates"
    )
    poc_candidates: Literal["size", "uniform"] = Field(
        "size",
        description="`power-of-choice`: candidates drawn by `size` (n_k / n), or `uniform`",
    )


class ValuationConfig(_Part):
    """How the updates of a round are valued."""

    valuation: Literal["auto", "gtg", "exact", "tmc", "kriging", "none"] = Field(
        "auto",
        description="`gtg`, `exact`, `tmc`, `kriging`, `none`; `auto`: none where the algorithm "
        "needs none, zeros in a round that changed the validation loss by less than "
        "`valuation-epsilon`, else `exact` within the budget (without one: 127 evaluations, "
        "M ≤ 7), else `kriging`; with `valuation-stop = released` it is `gtg`",
    )
    valuation_epsilon: float = Field(1e-4, ge=0, description="truncation threshold ε, in nats")
    valuation_stop: Literal["sound", "released"] = Field(
        "sound", description="when sampling ends: `sound` or as in the paper's `released` code"
    )
    valuation_permutations_per_client: int = Field(
        50, ge=1, description="at most this many permutations per client of the cohort"
    )
    valuation_max_evaluations: int = Field(
        0,
        ge=0,
        description="at most this many utility evaluations a round: 4·M or more, M(M − 1) + 1 for "
        "`gtg` and `tmc`, 2^M − 1 for `exact`; 0: no limit",
    )
    valuation_max_seconds: float = Field(
        0.0,
        ge=0,
        description="begin no more sampling after so many seconds of a round's valuation, once "
        "each client has a value; 0: no limit; values then depend on the machine",
    )
    valuation_examples: int = Field(
        0,
        ge=0,
        description="value on so many validation examples, a fixed part with the classes in their "
        "proportions; 0: on all",
    )
    valuation_groups: Literal["classes", "column", "clusters", "none"] = Field(
        "classes",
        description="groups of validation examples in which clients are valued apart: `classes`, "
        "the values of a `column` of a table, k-means `clusters` of the inputs, or `none`",
    )
    valuation_group_column: int = Field(
        0, ge=0, description="column of `valuation-groups = column`, from 0, the label not counted"
    )
    valuation_clusters: int = Field(
        10, ge=1, le=100, description="number of groups with `valuation-groups = clusters`"
    )
    valuation_memory: int = Field(
        256, ge=1, description="MiB that the models of many coalitions may take at a time"
    )


class RunConfig(_Part):
    """One run. Two runs with equal `run_id` compute the same numbers."""

    seed: int = Field(0, ge=0, lt=2**63, description="seed of everything random")
    num_rounds: int = Field(40, ge=1, description="communication rounds T")
    output_dir: str = Field("runs", min_length=1, description="run directories are made in here")
    resume: bool = Field(
        False, description="continue the run of this configuration, or one of fewer rounds"
    )
    device: Literal["cpu", "cuda"] = Field("cpu", description="`cpu` or `cuda`")
    round_deadline: float = Field(600.0, gt=0, description="seconds to wait for a round's clients")
    quorum: int = Field(
        0,
        ge=0,
        description="updates a round needs; 0: up to M, at least 1; others are asked in place of "
        "clients that failed, at most twice a round",
    )
    spare_clients: int = Field(
        0, ge=0, description="clients asked beyond M; a round ends when M have answered"
    )
    max_examples: int = Field(
        0, ge=0, description="refuse updates that claim more examples; 0: no limit"
    )
    loggers: str = Field(
        "",
        description="also write each round to `tensorboard`, `mlflow`, or both (a comma between)",
    )
    data: DataConfig = DataConfig()
    training: TrainingConfig = TrainingConfig()
    heterogeneity: HeterogeneityConfig = HeterogeneityConfig()
    selection: SelectionConfig = SelectionConfig()
    valuation: ValuationConfig = ValuationConfig()

    @classmethod
    def from_flat(cls, flat: Mapping[str, Any]) -> Self:
        """Build from flat kebab-case keys; absent keys take their defaults.

        Raises:
            ConfigError: one line per unknown key, wrong value or impossible combination.
        """
        problems, nested = [], dict[str, Any]()
        for key, value in flat.items():
            if key not in KEYS:
                near = difflib.get_close_matches(key.replace("_", "-"), KEYS, n=1, cutoff=0.5)
                remedy = f"did you mean {near[0]!r}?" if near else "README.md lists the keys"
                shown = key if key.isprintable() else repr(key)
                problems.append(f"{shown} = {_toml(value)}: unknown key; {remedy}")
            elif part := KEYS[key][0]:
                nested.setdefault(part, {})[key] = value
            else:
                nested[key] = value
        config = None
        try:
            config = cls.model_validate(nested)
        except ValidationError as error:
            for e in error.errors():
                key = str(e["loc"][-1])
                rule = e["msg"][0].lower() + e["msg"][1:]
                example = _toml(KEYS[key][1].default)
                value = _toml(e["input"])
                problems.append(f"{key} = {value}: {rule}; for example {key} = {example}")
        if config is not None:
            problems += impossible(config)
        if problems:
            raise ConfigError("\n".join(problems))
        assert config is not None
        return config

    def to_flat(self) -> dict[str, Scalar]:
        """All keys with their values, in the order of `KEYS`."""
        dump = self.model_dump(by_alias=True)
        return {key: (dump[part] if part else dump)[key] for key, (part, _) in KEYS.items()}

    def with_values(self, **flat: Scalar) -> Self:
        """A validated copy; keys are written with underscores."""
        return self.from_flat(self.to_flat() | {_kebab(k): v for k, v in flat.items()})

    @property
    def logger_names(self) -> list[str]:
        """The names in `loggers`, each once."""
        names = (name.strip() for name in self.loggers.split(","))
        return list(dict.fromkeys(filter(None, names)))

    @property
    def run_id(self) -> str:
        """Name of the run directory: a hash of every key that can change a number.

        Keys at their default are left out, so that a version with more keys finds the runs of an
        older one.
        """
        same = {k: v for k, v in self.identity().items() if v != KEYS[k][1].default}
        digest = hashlib.sha256(json.dumps(same, sort_keys=True).encode()).hexdigest()
        return f"{self.selection.algorithm}-{self.data.dataset}-{digest[:10]}"

    def identity(self) -> dict[str, Scalar]:
        """Every key that can change a number, with its value: what makes a run this run."""
        flat = {k: v for k, v in self.to_flat().items() if k not in _PLACES}
        if self.data.dataset == "own":
            flat["data-dir"] = self.data.data_dir  # the only name that such data has
        return flat

    def differences(self, flat: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
        """Keys that can change a number: key, value in `flat`, value here, where both differ."""
        mine = self.to_flat()
        return [
            (key, flat[key], value)
            for key, value in mine.items()
            if key in flat and key not in _PLACES and flat[key] != value
        ]


# Where a run is kept and how it is computed: no influence on what it computes.
_PLACES = ("output-dir", "resume", "device", "data-dir", "download", "round-deadline", "loggers")


def _keys() -> dict[str, tuple[str, Any]]:
    keys: dict[str, tuple[str, Any]] = {}
    for name, field in RunConfig.model_fields.items():
        part = field.annotation
        if isinstance(part, type) and issubclass(part, _Part):
            keys |= {_kebab(n): (name, f) for n, f in part.model_fields.items()}
        else:
            keys[_kebab(name)] = ("", field)
    return keys


#: key -> (part of RunConfig or "", pydantic field)
KEYS = _keys()
