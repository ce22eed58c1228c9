"""What the tour found: plain data, as chapters fill it and as closing table, JSON and page show it."""

from __future__ import annotations

from msgspec import Struct

from groundplane.report import Chart, Page, Section, Table, Text
from groundplane.spec import units


class Prediction(Struct, frozen=True):
    """Written down before the run, from the probe alone."""

    step_s: float
    step_low_s: float
    step_high_s: float
    memory_bytes: float
    tokens_per_s: float
    bottleneck: str
    stages_s: dict[str, float]


class StepPoint(Struct, frozen=True):
    """One training step as rank 0 told of it; `work_id` names the attempt."""

    work_id: str
    step: int
    loss: float
    time_ns: int


class TrainingRun(Struct, frozen=True):
    """One job, from submission to its end. `steps` are all that were made, repeated ones included."""

    job_id: str
    attempts: int
    wall_s: float
    steps: list[StepPoint]
    weights_sha256: str
    peak_memory_bytes: int
    tokens_per_step: int

    @property
    def step_s(self) -> float:
        """Median seconds of a step; the first of each attempt, which warms up, is left out."""
        times = sorted(
            point.time_ns
            for before, point in zip(self.steps, self.steps[1:], strict=False)
            if before.work_id == point.work_id
        )
        return times[len(times) // 2] / 1e9 if times else 0.0


class Fault(Struct, frozen=True):
    """One fault injected: what was killed, at which step, and what it cost."""

    what: str
    at_step: int
    steps_repeated: int
    time_lost_s: float


class Answer(Struct, frozen=True):
    """One API call by the official client."""

    model: str
    streamed: bool
    prompt: str
    text: str
    first_token_s: float
    tokens_out: int
    tokens_per_s: float


class Books(Struct, frozen=True):
    """The ledgers. Tokens: the platform's sums and the clients' own. Devices: nanoseconds by account."""

    tokens_in: int
    tokens_out: int
    client_tokens_in: int
    client_tokens_out: int
    requests: int
    device_ns: dict[str, int]
    device_total_ns: int
    events_replayed: int
    actions_replayed: int
    replay_is_identical: bool

    @property
    def tokens_agree(self) -> bool:
        """Whether the ledger of tokens equals what the clients counted."""
        return (self.tokens_in, self.tokens_out) == (self.client_tokens_in, self.client_tokens_out)

    @property
    def devices_close(self) -> bool:
        """Whether the accounts of device time sum to all the time there was."""
        return sum(self.device_ns.values()) == self.device_total_ns


class TourResult(Struct, frozen=True):
    """All of it."""

    prediction: Prediction
    disturbed: TrainingRun
    undisturbed: TrainingRun
    faults: list[Fault]
    answers: list[Answer]
    books: Books
    wall_s: float
    folder: str

    @property
    def is_bit_identical(self) -> bool:
        """Whether the job that was killed ended with the very weights of the one that was not."""
        return self.disturbed.weights_sha256 == self.undisturbed.weights_sha256


def failures(result: TourResult) -> list[str]:
    """What the tour promised and did not keep; empty when all is well."""
    broken = []
    if not result.is_bit_identical:
        broken.append("the recovered weights differ from the undisturbed run's")
    if not result.books.tokens_agree:
        broken.append("the ledger of tokens differs from what the clients counted")
    if not result.books.devices_close:
        broken.append("the accounts of device time do not sum to all the time there was")
    if not result.books.replay_is_identical:
        broken.append("the journal does not replay to the same actions")
    return broken


def prediction_rows(result: TourResult) -> list[tuple[str, str, str, str]]:
    """Figure, predicted, measured, error; measured on the undisturbed run."""
    run, predicted = result.undisturbed, result.prediction
    tokens_per_s = run.tokens_per_step / run.step_s
    return [
        _compared("step time", predicted.step_s, run.step_s, units.show_duration),
        _compared("memory a rank", predicted.memory_bytes, run.peak_memory_bytes, units.show_bytes),
        _compared("tokens/s", predicted.tokens_per_s, tokens_per_s, lambda value: f"{value:,.0f}"),
    ]


def _compared(name: str, predicted: float, measured: float, show: object) -> tuple[str, str, str, str]:
    shown = show if callable(show) else str
    return name, shown(predicted), shown(measured), f"{100 * (predicted / measured - 1):+.0f} %"


def fault_rows(result: TourResult) -> list[tuple[str, str, str, str]]:
    """Fault, step, steps repeated, time lost."""
    return [
        (fault.what, str(fault.at_step), str(fault.steps_repeated), units.show_duration(fault.time_lost_s))
        for fault in result.faults
    ]


def answer_rows(result: TourResult) -> list[tuple[str, str, str, str, str]]:
    """Model, how, time to first token, tokens, tokens/s."""
    return [
        (
            answer.model,
            "streamed" if answer.streamed else "plain",
            units.show_duration(answer.first_token_s) if answer.streamed else "",
            str(answer.tokens_out),
            f"{answer.tokens_per_s:.0f}",
        )
        for answer in result.answers
    ]


def device_rows(result: TourResult) -> list[tuple[str, str, str]]:
    """Account, core-seconds, share."""
    total = result.books.device_total_ns
    rows = [
        (name.replace("_", " "), f"{spent / 1e9:.1f}", f"{100 * spent / total:.1f} %")
        for name, spent in result.books.device_ns.items()
    ]
    return [*rows, ("sum", f"{sum(result.books.device_ns.values()) / 1e9:.1f}", "100 %")]


def page(result: TourResult) -> Page:
    """The tour as a report."""
    predicted = result.prediction
    stages = {name: seconds for name, seconds in predicted.stages_s.items() if seconds > 0}
    proof = (
        f"Weights of the killed and recovered job: {result.disturbed.weights_sha256}\n"
        f"Weights of the undisturbed job:          {result.undisturbed.weights_sha256}\n"
        f"{'identical' if result.is_bit_identical else 'DIFFERENT'}"
    )
    books = result.books
    return Page(
        "Groundplane: the tour of this machine",
        f"From its cores to one API call, in {units.show_duration(result.wall_s)}.",
        [
            Section(
                "Predicted and measured",
                [
                    Text("Predicted from the probe alone and written down before the run."),
                    Table(["figure", "predicted", "measured", "error"], prediction_rows(result)),
                    Text(f"Bottleneck: {predicted.bottleneck}."),
                    Chart(
                        [
                            {
                                "type": "bar",
                                "x": [1e3 * value for value in stages.values()],
                                "y": list(stages),
                            }
                            | {"orientation": "h"}
                        ],
                        {"title": "Predicted step by stage", "xaxis": {"title": "ms"}},
                    ),
                ],
            ),
            Section("Training, killed twice", [_loss_chart(result), Text(proof, preformatted=True)]),
            Section(
                "Faults and what they cost",
                [Table(["fault", "at step", "steps repeated", "time lost"], fault_rows(result))],
            ),
            Section(
                "The API calls",
                [
                    Table(["model", "call", "first token", "tokens", "tokens/s"], answer_rows(result)),
                    *(
                        Text(f"{each.model}\n> {each.prompt}\n{each.text}", preformatted=True)
                        for each in result.answers
                    ),
                ],
            ),
            Section(
                "The books",
                [
                    Text(
                        f"Tokens: the ledger has {books.tokens_in} in and {books.tokens_out} out over "
                        f"{books.requests} requests; the clients counted {books.client_tokens_in} and "
                        f"{books.client_tokens_out}."
                    ),
                    Table(["account", "core-seconds", "share"], device_rows(result)),
                    Text(
                        f"The journal of {books.events_replayed} events replays to "
                        f"{'the same' if books.replay_is_identical else 'DIFFERENT'} "
                        f"{books.actions_replayed} actions."
                    ),
                ],
            ),
        ],
    )


def _loss_chart(result: TourResult) -> Chart:
    traces = []
    for name, run in (("undisturbed", result.undisturbed), ("killed and recovered", result.disturbed)):
        traces.append(
            {
                "type": "scatter",
                "mode": "lines" if name == "undisturbed" else "markers",
                "name": name,
                "x": [point.step for point in run.steps],
                "y": [point.loss for point in run.steps],
                "text": [point.work_id for point in run.steps],
            }
        )
    marks = [
        {"type": "line", "x0": fault.at_step, "x1": fault.at_step, "yref": "paper", "y0": 0, "y1": 1}
        | {"line": {"dash": "dot", "color": "#c0392b"}}
        for fault in result.faults
    ]
    notes = [
        {"x": fault.at_step, "yref": "paper", "y": 1, "text": fault.what}
        | {"showarrow": False, "yanchor": "bottom"}
        for fault in result.faults
    ]
    axes = {"xaxis": {"title": "step"}, "yaxis": {"title": "loss"}}
    return Chart(traces, axes | {"shapes": marks, "annotations": notes})
