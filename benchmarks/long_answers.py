"""Measures the cost of a step after 1,000 tokens of an answer, and after 32,000.

    python -m benchmarks.long_answers servers      # real SGLang servers on a CPU: ten minutes
    python -m benchmarks.long_answers controller   # our own part alone: ten seconds

``servers``: target and draft have the architecture of the pocket draft with a context of 40,960
tokens and random weights; verdicts are random. The answer up to each position is sent to the
servers step by step, so that their prefix caches hold a node for each step, as after an answer that
they wrote; then every mode continues it, in turns. It prints seconds for a step of 32 tokens,
processor seconds of each server in them, and milliseconds of two requests that write one token:
``read`` has one step to prefill, and ``repeat`` is the same request again, with nothing to prefill.
The time of a repeat beyond a token of plain decoding is not the model's: it is HTTP, JSON, and the
scheduler with its prefix cache.

``controller``: one answer over simulated runtimes in the same process; CPU time of our own code
alone.
"""

from __future__ import annotations

import json
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import orjson
import psutil

from lr_sglang.sglang_api.light_import import leave_torch_out

leave_torch_out()

import sglang as sgl  # noqa: E402
from sglang.lang.interpreter import ProgramState  # noqa: E402

from lr_sglang import verifiers  # noqa: E402
from lr_sglang.algorithm.answer import answering  # noqa: E402
from lr_sglang.algorithm.answer_request import AnswerRequest  # noqa: E402
from lr_sglang.api.runner import keep_what_is_imported  # noqa: E402
from lr_sglang.config import Deployment, Limits, Lookahead, Runtime, Sampling, TokenLayer  # noqa: E402
from lr_sglang.engine.loop import call  # noqa: E402
from lr_sglang.frontend.backend import RuntimeBackend  # noqa: E402
from lr_sglang.frontend.dsl import converse, run_program  # noqa: E402
from lr_sglang.programs.lookahead import lookahead, write_alone, write_answer  # noqa: E402
from lr_sglang.results import record, store  # noqa: E402
from lr_sglang.runtimes.connect import deployed  # noqa: E402
from lr_sglang.runtimes.placement.models import TOKENIZER_FILES, shapes  # noqa: E402
from lr_sglang.steps.branch import Request  # noqa: E402
from lr_sglang.steps.token_text import TokenText  # noqa: E402
from lr_sglang.tasks import Question  # noqa: E402
from lr_sglang.tasks.task import messages  # noqa: E402
from tests.simulated.clock import run_virtually  # noqa: E402
from tests.simulated.model import (  # noqa: E402
    Model,
    Simulation,
    Writer,
)
from tests.simulated.transport import simulated_roles  # noqa: E402
from tests.simulated.words import pocket_words, tokenizer_path  # noqa: E402

CONTEXT, STEP, DEPTH = 40_960, 32, 6  # tokens of the context, tokens of a step, steps ahead
POSITIONS = "1024,2048,4096,8192,16384,32768"
ASKED = messages("Which step is the longest?")
TIMED = 16  # the median of as many requests counts


class Endless(Sampling):
    """Sampling that ignores the end of sequence, which random weights would write by chance."""

    def drawn(self) -> dict[str, Any]:
        return {**super().drawn(), "ignore_eos": True}


def deployment(folder: Path, with_layer: bool) -> Deployment:
    """Two runtimes of random weights; the target's token layer has the same architecture."""
    config = {**shapes()["pocket-draft"], "max_position_embeddings": CONTEXT}
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    for name in TOKENIZER_FILES:
        shutil.copy(Path(tokenizer_path(), name), folder)
    extra = {
        "load-format": "dummy",
        "speculative-draft-load-format": "dummy",
        "max-total-tokens": 4 * CONTEXT,
    }
    draft = Runtime(model=str(folder), extra=extra)
    layer = TokenLayer()
    if with_layer:
        layer = TokenLayer("standalone", tokens=3, draft_model=str(folder))
    target = draft.replace(token_layer=layer)
    runtimes = {"target": target, "draft": draft}
    return Deployment("long-answers", runtimes, lookahead=Lookahead(depth=DEPTH))


def known_steps(tokens: int) -> list[TokenText]:
    """The common beginning of all measured answers: steps of random words."""
    words, draw = pocket_words(), random.Random(0)
    drawn = (
        (*draw.choices(words.known, k=STEP - 1), words.delimiter) for _ in range(tokens // STEP)
    )
    return [
        TokenText.of(words.tokenizer.decode(ids), ids, words.tokenizer.vocabulary) for ids in drawn
    ]


@sgl.function
async def goes_on(
    s: ProgramState, before: Sequence[TokenText], request: AnswerRequest, mode: str
) -> None:
    """Goes on with an answer in one mode."""
    converse(s, ASKED)
    for step in before:
        s += step
    async with answering(s, request) as answer:
        if request.verifier is not None:
            await write_answer(answer)
            return
        while not answer.tree.complete:
            await write_alone(answer, answer.tree.room(answer.tree.root))


def seconds_a_step(
    mode: str,
    before: Sequence[TokenText],
    roles: Mapping[str, RuntimeBackend],
    steps: int,
    seed: int,
) -> float:
    """Seconds for a step of ``STEP`` tokens, measured over ``steps`` steps that continue
    an answer.
    """
    schedule = mode.removesuffix("+sd")
    ahead = schedule in ("async", "sync")
    look = Lookahead(
        verifier="random:0.63",
        depth=DEPTH,
        schedule="sync" if schedule == "sync" else "async",
        max_step_tokens=STEP,
        half_sentence_guard=False,
    )
    # Of other seeds than another mode's: it would find in the cache what that has written.
    request = AnswerRequest(
        look, Endless(1.0, 1.0, seed=seed), Limits(max_tokens=steps * STEP), question=mode
    )
    if ahead:
        request.verifier = verifiers.make_verifier(look.verifier, verifiers.Setup(roles, "pocket"))
    goes_on.run(before, request, mode, backend=roles["target"])
    return request.trace.seconds * STEP / len(request.trace.ids)


def read(
    backend: RuntimeBackend, known: Sequence[TokenText], begin: int, end: int
) -> tuple[float, float]:
    """Sends the steps to a runtime one by one; returns the milliseconds of a read and of
    a repeat.
    """
    ids = backend.tokenizer.chat(ASKED, True).ids + tuple(
        i for step in known[:begin] for i in step.ids
    )
    sampling = {"max_new_tokens": 1, "temperature": 0.0, "ignore_eos": True}

    def milliseconds() -> float:
        began = time.monotonic()
        call(
            backend.transport.generate(
                {"input_ids": ids, "sampling_params": sampling}, Request(), 60.0
            ),
            backend.loop,
        )
        return 1000 * (time.monotonic() - began)

    took = []
    for step in known[begin:end]:
        ids += step.ids
        took.append(milliseconds())
    return statistics.median(took[-TIMED:]), statistics.median(milliseconds() for _ in range(TIMED))


def processor_seconds(backend: RuntimeBackend) -> float:
    """Processor seconds so far of a runtime's server and its child processes, without other work on
    the machine.
    """
    port = backend.transport.url.rsplit(":", 1)[1]
    for process in psutil.Process().children(recursive=True):
        if port in process.cmdline():
            return sum(
                sum(one.cpu_times()[:2]) for one in (process, *process.children(recursive=True))
            )
    raise click.ClickException(f"no server of this process listens on port {port}")


def on_servers(
    modes: Sequence[str], positions: Sequence[int], steps: int, rounds: int
) -> Iterator[dict[str, Any]]:
    """For each position: a read and a repeat by role, and seconds a step by mode."""
    known = known_steps(positions[-1])
    for with_layer in sorted({mode.endswith("sd") for mode in modes}):
        mine = [mode for mode in modes if mode.endswith("sd") == with_layer]
        with (
            tempfile.TemporaryDirectory() as folder,
            deployed(deployment(Path(folder), with_layer), Path(folder)) as roles,
        ):
            begin = 0
            for position in positions:
                end = position // STEP
                row: dict[str, Any] = {"position": position}
                for role, backend in roles.items():
                    row[f"{role} read"], row[f"{role} repeat"] = read(backend, known, begin, end)
                found: dict[str, list[float]] = {}
                for number in range(rounds + (begin == 0)):  # the very first is for warm-up
                    for mode in mine:
                        before = {
                            role: processor_seconds(backend) for role, backend in roles.items()
                        }
                        found.setdefault(mode, []).append(
                            seconds_a_step(mode, known[:end], roles, steps, number)
                        )
                        for role, backend in roles.items():
                            used = (processor_seconds(backend) - before[role]) / steps
                            found.setdefault(f"{mode}, processor of {role}", []).append(used)
                begin = end
                yield row | {
                    name: statistics.median(each[-rounds:]) for name, each in found.items()
                }


def on_the_virtual_clock(positions: Sequence[int]) -> Iterator[tuple[int, float, float, float]]:
    """CPU milliseconds of a call and of a step around each position, and those of a
    prompt as JSON.
    """
    model = Model(steps=positions[-1] // STEP + 33, tokens=STEP)
    writer, marks = Writer(model), [(0, 0.0, 0)]

    async def answer() -> AnswerRequest:
        roles = simulated_roles(Simulation(model, judge_seconds=0.01, c1=0.1), writer)
        judge = verifiers.make_verifier("judge", verifiers.Setup(roles, "paper"))
        request = AnswerRequest(Lookahead(depth=DEPTH), verifier=judge)
        request.on_step = lambda _: marks.append(
            (len(request.trace.ids), time.process_time(), len(request.trace.branches))
        )
        await run_program(lookahead, ASKED, request, backend=roles["target"])
        return request

    keep_what_is_imported()  # as run and serve do
    request = run_virtually(answer())
    for position in positions:
        near = [mark for mark in marks if abs(mark[0] - position) <= 16 * STEP]
        cpu, calls = (near[-1][n] - near[0][n] for n in (1, 2))
        ids, began = request.trace.ids[:position], time.process_time()
        for _ in range(100):
            orjson.dumps({"input_ids": ids})
        yield (
            position,
            1000 * cpu / calls,
            1000 * cpu / (len(near) - 1),
            10 * (time.process_time() - began),
        )
    began = time.process_time()
    line = store.record_line(
        record.make_record(Question("long", "?"), "lookahead", request, {}, {})
    )
    made = time.process_time() - began
    click.echo(
        f"the record of {len(request.trace.ids)} tokens: {len(line) / 1e6:.1f} MB, {made:.2f} s",
        err=True,
    )


@click.group(help=__doc__.split("\n\n")[0] if __doc__ else None)
def main() -> None:
    pass


@main.command("servers")
@click.option(
    "--modes",
    default="autoregressive,async,sync",
    show_default=True,
    help="Also sd, async+sd, sync+sd.",
)
@click.option(
    "--positions",
    default=POSITIONS,
    show_default=True,
    help="Tokens of the answer, multiples of 32.",
)
@click.option("--steps", default=12, show_default=True, help="Measured at each position.")
@click.option("--rounds", default=3, show_default=True, help="Of which the median counts.")
@click.option(
    "--json", "output", type=click.Path(path_type=Path), help="Also write the figures here."
)
def servers_command(
    modes: str, positions: str, steps: int, rounds: int, output: Path | None
) -> None:
    where, rows = sorted(map(int, positions.split(","))), []
    for row in on_servers(modes.split(","), where, steps, rounds):
        rows.append(row)
        click.echo(", ".join(f"{name} {value:.4g}" for name, value in row.items()))
        if output:
            output.write_text(json.dumps(rows, indent=1))


@main.command("controller")
@click.option("--positions", default="1024,8192,32768", show_default=True)
def controller_command(positions: str) -> None:
    for position, a_call, a_step, as_json in on_the_virtual_clock(
        sorted(map(int, positions.split(",")))
    ):
        click.echo(
            f"{position:6} tokens: {a_call:.2f} ms a call, {a_step:.1f} ms a step; JSON "
            f"{as_json:.2f} ms a call"
        )


if __name__ == "__main__":
    main()
