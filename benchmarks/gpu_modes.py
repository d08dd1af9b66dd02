"""Tries the four modes with every token layer on models of random weights: which of them start, and
how fast they are.

    python -m benchmarks.gpu_modes --output gpu-modes

It needs an installed lr-sglang and a GPU, and downloads nothing: the models are shapes
(dummy:qwen3-1.7b, and with `--sizes small,large` dummy:qwen3-32b where 110 GiB of GPU memory are
free). Target and draft share one GPU. Each launch has its own time limit, and a failure is recorded
and does not end the benchmark: after every launch, OUTPUT/results.json and OUTPUT/results.md have
everything so far, with the error in the log of a server that died. With `--device cpu` it uses the
small shapes of the pocket models, on any machine.

`--flag sampling-backend=pytorch --flag grammar-backend=none` avoids minutes of compilation by
FlashInfer, and `--flag disable-cuda-graph` the capture of CUDA graphs.

With random weights, acceptance means nothing: the verifier accepts a given share, and the token
layer accepts by chance. The figures only show the cost of each kind of step.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import click

from lr_sglang.results import machine
from lr_sglang.results.record import Record
from lr_sglang.results.store import RECORDS, each_record
from lr_sglang.runtimes.launching import server
from lr_sglang.steps.trace import acceptance

GIB = 1 << 30
PLAIN = (
    "autoregressive",
    "lookahead",
)  # they share servers; so do the two modes with a token layer
LAYERED = ("sd", "lookahead+sd")
MODES = (*PLAIN, *LAYERED)
LAYERS = ("ngram", "standalone", "eagle3")
GRACE = 30.0  # seconds from SIGTERM until a run is killed


@dataclass(frozen=True)
class Size:
    """Shapes of target and draft; ``shares`` are their memory fractions, each of the memory free at
    its own start.
    """

    target: str
    draft: str
    guesser: str
    head: str
    shares: tuple[float, float] = (0.5, 0.6)
    needs: int = 0


SIZES = {
    "pocket": Size("pocket-target", "pocket-draft", "pocket-draft", "pocket-target-eagle3"),
    "small": Size("qwen3-1.7b", "qwen3-0.6b", "qwen3-0.6b", "qwen3-1.7b-eagle3", needs=20 * GIB),
    "large": Size(
        "qwen3-32b", "qwen3-1.7b", "qwen3-0.6b", "qwen3-32b-eagle3", (0.7, 0.6), 110 * GIB
    ),
}


@dataclass
class Row:
    """The result of one mode with one token layer."""

    size: str
    layer: str
    mode: str
    result: str = "not tried"
    cause: str = ""
    ready_s: float | None = None
    answers: int = 0
    tokens_per_s: float | None = None
    speed_up: float | None = None
    alpha: float | None = None
    sd_length: float | None = None
    sd_verified: int = 0
    log: str = ""


@dataclass
class Bench:
    """The settings of all launches, and the rows so far."""

    output: Path
    device: str
    gpu: int
    questions: int
    step_tokens: int
    max_tokens: int
    depth: int
    verifier: str
    temperature: float
    limit: float
    deadline: float
    extra: dict[str, str | bool]
    about: dict[str, Any]
    rows: list[Row] = field(default_factory=list)

    def launch(self, size: str, layer: str, modes: Sequence[str]) -> None:
        """Launches the servers that the modes share; if the draft fails, tries again without it."""
        rows = [Row(size, layer, mode) for mode in modes]
        self.rows += rows
        self._try(rows)
        alone = [row for row in rows if "lookahead" not in row.mode]
        if (
            len(rows) > len(alone) > 0
            and not rows[0].answers
            and rows[0].cause.startswith("draft:")
        ):
            self._try(alone)
        self.write()

    def _try(self, rows: list[Row]) -> None:
        left = min(self.limit, self.deadline - time.monotonic())
        if left < 20:
            for row in rows:
                row.result, row.cause = "not tried", "no time was left"
            return
        modes = [row.mode for row in rows]
        name = "_".join((rows[0].size, rows[0].layer, *modes)).replace("+", "-")
        folder = self.output / name
        deployment = self.output / f"{name}.toml"
        deployment.write_text(self._deployment(SIZES[rows[0].size], rows[0].layer), "utf-8")
        click.echo(f"{name}: at most {left:.0f} s")
        status, said = _run(
            self._command(deployment, folder, modes, left), folder.with_suffix(".txt"), left
        )
        records = _records(folder)
        ready = [float(at) for at in re.findall(r": ready \((\d+) s\)", said)]
        for row in rows:
            self._fill(row, [r for r in records if r["mode"] == row.mode], status, said, folder)
            row.ready_s = max(ready, default=None)
            click.echo(f"  {row.mode}: {row.result} {row.cause}".rstrip())

    def _fill(
        self, row: Row, records: list[Record], status: int | None, said: str, folder: Path
    ) -> None:
        row.log = str(folder.relative_to(self.output))
        row.result, row.cause = "works", ""
        errors = [r["error"] for r in records if r["error"]]
        failed = {role: n for r in records for role, n in r["failures"].items()}
        if len(records) < self.questions or errors:
            row.result = "failed" if status is not None else "out of time"
            row.cause = (
                f"{errors[0]['role']}: {errors[0]['message']}" if errors else _cause(said, folder)
            )
            row.cause = row.cause or f"{len(records)} of {self.questions} answers"
        elif failed:
            row.result = "failed"
            row.cause = ", ".join(f"{role}: {n} requests failed" for role, n in failed.items())
        row.answers = sum(r["error"] is None for r in records)
        if row.answers:
            judged = sum(r["judged"] for r in records)
            row.alpha = sum(r["accepted"] for r in records) / judged if judged else None
            layers = [r["tokens"]["target"]["sd"] for r in records]
            sd = acceptance([[sd[n] for n in ("verified", "drafted", "accepted")] for sd in layers])
            row.sd_length, row.sd_verified = sd["length"], sd["verified"]
            # the first question compiles kernels
            ended = [r for r in records[1:] or records if r["error"] is None]
            seconds = sum(r["seconds"] for r in ended)
            used = sum(r["tokens"]["used"] for r in ended)
            row.tokens_per_s = used / seconds if seconds else None
        base = [
            r
            for r in self.rows
            if r.size == row.size and r.mode == "autoregressive" and r.tokens_per_s
        ]
        if base and row.tokens_per_s and base[0].tokens_per_s:
            row.speed_up = row.tokens_per_s / base[0].tokens_per_s

    def _deployment(self, size: Size, layer: str) -> str:
        """A deployment file, which can also be used by hand."""
        guess = {
            "none": "",
            "ngram": '{algorithm = "ngram", tokens = 8}',
            "standalone": f'{{algorithm = "standalone", draft_model = "dummy:{size.guesser}", tokens = 4}}',
            "eagle3": f'{{algorithm = "eagle3", draft_model = "dummy:{size.head}", steps = 5, topk = 4, tokens = 7}}',
        }[layer]
        lines = []
        for role, model, share in (
            ("target", size.target, size.shares[0]),
            ("draft", size.draft, size.shares[1]),
        ):
            lines += [f"[runtimes.{role}]", f'model = "dummy:{model}"', f'device = "{self.device}"']
            if self.device == "cuda":
                lines += [
                    f"gpus = [{self.gpu}]",
                    f"memory_fraction = {share}",
                    'dtype = "bfloat16"',
                ]
            if guess and (role == "target" or layer == "ngram"):
                lines.append(f"token_layer = {guess}")
            if self.extra:
                lines.append(f"[runtimes.{role}.extra]")
                lines += [f"{name} = {json.dumps(value)}" for name, value in self.extra.items()]
            lines.append("")
        return "\n".join(lines)

    def _command(
        self, deployment: Path, folder: Path, modes: Sequence[str], left: float
    ) -> list[str]:
        options = {
            "deployment": deployment,
            "task": "pocket",
            "limit": self.questions,
            "verifier": self.verifier,
            "depth": self.depth,
            "max-step-tokens": self.step_tokens,
            "max-tokens": self.max_tokens,
            "temperature": self.temperature,
            "output": folder,
        }
        words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
        words += [word for mode in modes for word in ("--mode", mode)]
        start = "from lr_sglang.cli import main; main()"
        settings = ["-o", f"launch_timeout={max(1.0, left - 10)}"]
        settings += ["-o", "lookahead.half_sentence_guard=false"]
        return [sys.executable, "-c", start, "run", *words, *settings]

    def write(self) -> None:
        """Everything so far, as JSON and as a table."""
        table = {**self.about, "rows": [asdict(row) for row in self.rows]}
        _replace(self.output / "results.json", json.dumps(table, indent=1))
        _replace(self.output / "results.md", self.table())

    def table(self) -> str:
        """A markdown table."""
        titles = (
            "models",
            "token layer",
            "mode",
            "result",
            "ready",
            "tok/s",
            "speed-up",
            "alpha",
            "tok/verification",
        )
        lines = [
            f"{', '.join(self.about['machine']['gpus']) or self.about['machine']['cpu']}; random weights",
            "",
        ]
        lines += ["| " + " | ".join((*titles, "cause")) + " |", "|---" * (len(titles) + 1) + "|"]
        for row in self.rows:
            names = SIZES[row.size]
            cells = (
                *(f"{names.target} / {names.draft}", row.layer, row.mode, row.result),
                *(_number(row.ready_s, "{:.0f} s"), _number(row.tokens_per_s, "{:.1f}")),
                *(
                    _number(row.speed_up, "{:.2f}"),
                    _number(row.alpha, "{:.2f}"),
                    _number(row.sd_length, "{:.2f}"),
                ),
                row.cause.replace("|", "\\|"),
            )
            lines.append("| " + " | ".join(cells) + " |")
        return "\n".join([*lines, ""])


def _run(command: list[str], output: Path, limit: float) -> tuple[int | None, str]:
    """Runs a command; returns its exit status (None if it was stopped after ``limit``) and its
    output.
    """
    environ = {**os.environ, "HF_HUB_OFFLINE": "1", "NO_COLOR": "1", "COLUMNS": "200"}
    with output.open("w+", encoding="utf-8", errors="replace") as file:
        process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, env=environ)
        status: int | None = None
        try:
            status = process.wait(limit)
        except subprocess.TimeoutExpired:
            process.send_signal(
                signal.SIGTERM
            )  # it then stops its servers; if not, their guardian does
        finally:
            try:
                process.wait(GRACE)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
    return status, output.read_text("utf-8", "replace")


def _records(folder: Path) -> list[Record]:
    path = folder / RECORDS
    return list(each_record(path)) if path.exists() else []


def _cause(said: str, folder: Path) -> str:
    """The last error in a run's output, else the error in the log of a server; empty if there is
    none.
    """
    told = re.findall(r"^(?:Internal error|Error): (.*)", said, re.M)
    causes = {
        log.stem: server.cause(server.tail_of(log, 400))
        for log in sorted(folder.glob("logs/*.log"))
    }
    logs = [f"{role}: {cause}" for role, cause in causes.items() if cause]
    return " ".join((told[-1:] or logs[:1] or [""])[0].split())[:300]


def _replace(path: Path, text: str) -> None:
    """Replaces a file atomically."""
    new = path.with_name(path.name + ".new")
    new.write_text(text, "utf-8")
    new.replace(path)


def _number(value: float | None, form: str) -> str:
    return "" if value is None else form.format(value)


def _free(gpu: int) -> int:
    """Bytes that are free on a GPU, asked in a child process, because the process that asks
    allocates some.
    """
    ask = f"import torch; print(torch.cuda.mem_get_info({gpu})[0] if torch.cuda.is_available() else 0)"
    done = subprocess.run(
        [sys.executable, "-c", ask], capture_output=True, text=True, timeout=120, check=False
    )
    return int(done.stdout.strip() or 0)


def _flags(given: Sequence[str]) -> dict[str, str | bool]:
    found: dict[str, str | bool] = {}
    for text in given:
        name, equals, value = text.partition("=")
        found[name.lstrip("-")] = {"": not equals, "true": True, "false": False}.get(value, value)
    return found


def _chosen(names: str, known: Sequence[str]) -> list[str]:
    found = [name.strip() for name in names.split(",") if name.strip()]
    if wrong := sorted(set(found) - set(known)):
        raise click.BadParameter(f"{', '.join(wrong)}: there are {', '.join(known)}")
    return found


@click.command(help=__doc__.split("\n\n")[0] if __doc__ else None)
@click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    default="gpu-modes",
    show_default=True,
)
@click.option("--device", type=click.Choice(["cuda", "cpu"]), default="cuda", show_default=True)
@click.option("--gpu", default=0, show_default=True, help="Which one target and draft share.")
@click.option(
    "--sizes", default="", help="Of small, large, pocket.  [default: small; on a CPU pocket]"
)
@click.option("--layers", default=",".join(LAYERS), show_default=True)
@click.option("--modes", default=",".join(MODES), show_default=True)
@click.option("--questions", default=3, show_default=True, help="The first is for warm-up.")
@click.option("--max-step-tokens", "step_tokens", default=32, show_default=True)
@click.option("--max-tokens", default=256, show_default=True)
@click.option("--depth", default=4, show_default=True)
@click.option("--verifier", default="random:0.6", show_default=True)
@click.option("--temperature", default=0.6, show_default=True)
@click.option(
    "--attention-backend",
    default="triton",
    show_default=True,
    help="On GPUs; flashinfer compiles longer.",
)
@click.option(
    "--flag",
    multiple=True,
    metavar="NAME[=VALUE]",
    help="A flag of SGLang for every server; =false: not.",
)
@click.option(
    "--limit", default=150.0, show_default=True, help="Seconds of a launch with its answers."
)
@click.option(
    "--minutes",
    default=10.0,
    show_default=True,
    help="Of everything; what is then left is not tried.",
)
def main(
    output: Path,
    device: str,
    gpu: int,
    sizes: str,
    layers: str,
    modes: str,
    attention_backend: str,
    flag: tuple[str, ...],
    minutes: float,
    **given: Any,
) -> None:
    deadline = time.monotonic() + 60 * minutes - 10
    output = output.resolve()
    if (output / "results.json").exists():
        raise click.UsageError(f"{output} has results already; give another --output")
    output.mkdir(parents=True, exist_ok=True)
    extra: dict[str, str | bool] = (
        {"attention-backend": attention_backend} if device == "cuda" else {}
    )
    about = {"machine": machine.machine(), "versions": machine.versions(), "command": sys.argv[1:]}
    bench = Bench(
        output,
        device,
        gpu,
        deadline=deadline,
        extra={**extra, **_flags(flag)},
        about=about,
        **given,
    )
    wanted = _chosen(modes, MODES)
    for size in _chosen(sizes, list(SIZES)) or ["pocket" if device == "cpu" else "small"]:
        sets = [("none", [mode for mode in PLAIN if mode in wanted])]
        sets += [
            (layer, [mode for mode in LAYERED if mode in wanted])
            for layer in _chosen(layers, LAYERS)
        ]
        free = _free(gpu) if device == "cuda" else SIZES[size].needs
        for layer, part in sets:
            if free < SIZES[size].needs:
                why = f"{SIZES[size].needs // GIB} GiB of GPU memory are needed, {free // GIB} are free"
                bench.rows += [Row(size, layer, mode, cause=why) for mode in part]
            elif part:
                bench.launch(size, layer, part)
    bench.write()
    click.echo(bench.table())


if __name__ == "__main__":
    main()
