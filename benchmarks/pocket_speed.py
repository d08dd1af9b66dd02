"""Measures the speed-up of the embedded default: lookahead and the token layer against plain
decoding.

    python benchmarks/pocket_speed.py --questions 50 --json speed.json
    python benchmarks/pocket_speed.py --modes autoregressive,sd --token-layer ngram --sd-tokens 5

One question at a time. For every question the modes take turns, so that a machine that slows down
slows all of them alike; the first mode changes from question to question, and all begin with empty
caches. Modes with a token layer (sd, async+sd, sync+sd) have a second set of servers, which is up
at the same time and idle while the other one works. The baseline is the target's server without a
token layer, with the same settings. Its tokens/s are compared with those of `generate` in
transformers on the same model and prompts, one thread each, with the servers stopped. Figures are
ratios of sums over all questions, after one question for warm-up.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import click

from lr_sglang import tasks, verifiers
from lr_sglang.algorithm.answer_request import AnswerRequest
from lr_sglang.bench.servers import Caches
from lr_sglang.cli import options, settings
from lr_sglang.config import Deployment, Limits, TokenLayer
from lr_sglang.frontend.backend import RuntimeBackend
from lr_sglang.programs.autoregressive import autoregressive
from lr_sglang.programs.lookahead import lookahead
from lr_sglang.runtimes import load_deployment
from lr_sglang.runtimes.connect import deployed
from lr_sglang.steps.trace import Trace, acceptance

MODES = ("autoregressive", "async", "sync", "sd", "async+sd")
Roles = dict[str, RuntimeBackend]


def layered(mode: str) -> bool:
    """Whether the mode's servers have their token layer."""
    return mode.endswith("sd")


def answer(mode: str, question: tasks.Question, deployment: Deployment, roles: Roles) -> Trace:
    """One question in one mode."""
    schedule = mode.removesuffix("+sd")
    ahead = schedule in ("async", "sync")
    look = deployment.lookahead.with_options(schedule=schedule if ahead else None)
    request = AnswerRequest(look, deployment.sampling, Limits(max_tokens=400), question=question.id)
    if ahead:
        request.verifier = verifiers.make_verifier(
            look.verifier, verifiers.Setup(roles, deployment.judge_prompt)
        )
    program = lookahead if ahead else autoregressive
    program.run([{"role": "user", "content": question.question}], request, backend=roles["target"])
    return request.trace


def measure(
    deployment: Deployment, questions: Sequence[tasks.Question], modes: Sequence[str]
) -> dict[str, list[Trace]]:
    """All questions in all modes, interleaved."""
    traces: dict[str, list[Trace]] = {mode: [] for mode in modes}
    with ExitStack() as stack:
        sets = {
            on: stack.enter_context(servers(deployment, on))
            for on in {layered(mode) for mode in modes}
        }
        with click.progressbar(questions, label="answering", file=sys.stderr) as bar:
            caches = Caches(lambda text: click.echo(text, err=True))
            for number, question in enumerate(bar):
                turn = number % len(modes)
                for mode in (*modes[turn:], *modes[:turn]):
                    caches.empty(sets[layered(mode)])  # the mode before has read this question, too
                    trace = answer(mode, question, deployment, sets[layered(mode)])
                    if number:  # the first is for warm-up
                        traces[mode].append(trace)
    return traces


@contextmanager
def servers(deployment: Deployment, with_layer: bool) -> Iterator[Roles]:
    """The deployment's servers, with their token layer or without, until the end."""
    if not with_layer:
        plain = {
            role: runtime.replace(token_layer=TokenLayer())
            for role, runtime in deployment.runtimes.items()
        }
        deployment = deployment.replace(runtimes=plain)
    with tempfile.TemporaryDirectory() as logs, deployed(deployment, Path(logs)) as roles:
        yield roles


def transformers_speed(model: str, questions: Sequence[tasks.Question]) -> float:
    """Tokens/s of ``generate`` in float32 with one thread, one question at a time."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(model)
    network = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    tokens, seconds = 0, 0.0
    for number, question in enumerate(questions):
        chat = [{"role": "user", "content": question.question}]
        ids = tokenizer.apply_chat_template(
            chat, add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
        began = time.monotonic()
        with torch.inference_mode():
            out = network.generate(**ids, do_sample=False, max_new_tokens=400)
        if number:
            seconds += time.monotonic() - began
            tokens += out.shape[1] - ids["input_ids"].shape[1]
    return tokens / seconds


def summary(traces: list[Trace], baseline: list[Trace]) -> dict[str, Any]:
    """Figures of one mode; ``speedup`` is in seconds per answer, ``speedup_tokens`` in tokens/s."""
    seconds, tokens = sum(t.seconds for t in traces), sum(len(t.ids) for t in traces)
    base_seconds, base_tokens = sum(t.seconds for t in baseline), sum(len(t.ids) for t in baseline)
    counts = [t.tokens() for t in traces]
    judged = sum(t.judged for t in traces)

    def ratio(role: str, above: str, below: str) -> float | None:
        total = sum(c[role][below] for c in counts)
        return sum(c[role][above] for c in counts) / total if total else None

    return {
        "answers": len(traces),
        "seconds_per_answer": seconds / len(traces),
        "tokens_per_second": tokens / seconds,
        "speedup": base_seconds / seconds,
        "speedup_tokens": (tokens / seconds) / (base_tokens / base_seconds),
        "speedup_median": statistics.median(
            b.seconds / t.seconds for b, t in zip(baseline, traces, strict=True)
        ),
        "alpha": sum(t.accepted for t in traces) / judged if judged else None,
        "late": sum(v.by == "late" for t in traces for s in t.steps for v in s.verdicts if v),
        "judge_calls": sum(c["judge"]["calls"] for c in counts),
        "wasted_share": sum(c["wasted"] for c in counts) / sum(c["generated"] for c in counts),
        "reuse": {
            role: ratio(role, "reused", "shareable") for role in ("target", "draft", "judge")
        },
        "hit_rate": {
            role: ratio(role, "cached", "prompt") for role in ("target", "draft", "judge")
        },
        "sd": {
            role: acceptance(b.sd for t in traces for b in t.of(role))
            for role in ("target", "draft")
        },
        "drain_seconds": max(t.drained - t.seconds for t in traces),
    }


@click.command(help=__doc__.split("\n\n")[0] if __doc__ else None)
@click.option(
    "--deployment", "name", default="pocket", show_default=True, help="Built-in name or TOML file."
)
@click.option("--task", default="pocket", show_default=True)
@click.option("--questions", default=50, show_default=True)
@options.token_layer
@click.option("--depth", type=int, help="Steps to look ahead.  [default: the deployment's]")
@click.option("--modes", default=",".join(MODES), show_default=True)
@click.option("--transformers/--no-transformers", "beside", default=True, show_default=True)
@click.option(
    "--json", "output", type=click.Path(path_type=Path), help="Also write the figures here."
)
def main(
    name: str,
    task: str,
    questions: int,
    modes: str,
    beside: bool,
    output: Path | None,
    depth: int | None,
    **given: Any,
) -> None:
    deployment = settings.with_settings(given, {}, load_deployment(name), ["sd"])
    deployment = deployment.replace(lookahead=deployment.lookahead.with_options(depth=depth))
    chosen = tasks.load(task, limit=questions + 1)
    traces = measure(deployment, chosen, modes.split(","))
    figures: dict[str, Any] = {
        mode: summary(of, traces["autoregressive"]) for mode, of in traces.items()
    }
    if beside:
        from lr_sglang.runtimes.placement.models import locate

        figures["transformers"] = {
            "tokens_per_second": transformers_speed(
                locate(deployment.runtimes["target"].model), chosen
            )
        }
    for mode, row in figures.items():
        click.echo(f"{mode}")
        for key, value in row.items():
            click.echo(
                f"  {key:20} {value:.3f}" if isinstance(value, float) else f"  {key:20} {value}"
            )
    if output:
        output.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
