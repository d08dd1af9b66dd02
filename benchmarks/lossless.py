"""Counts the answers at temperature 0 that equal plain decoding's, token for token, with each layer
and both.

    python -m benchmarks.lossless --deployment pocket-body --dtype float32,bfloat16 --questions 20

Plain decoding is compared with `sd` and with the lossless mode, in both schedules, with and without
a token layer. With `--draft pocket:target` the draft writes nearly the same as the target, so that
many steps are accepted; the deployment's own draft seldom writes the target's exact words. Where an
answer differs, the plain server reports the log-probabilities of both tokens; the last column is
the largest difference.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import click

from lr_sglang import tasks, verifiers
from lr_sglang.algorithm.answer_request import AnswerRequest
from lr_sglang.config import Deployment, Limits, Lookahead, Sampling, TokenLayer
from lr_sglang.engine.loop import call
from lr_sglang.frontend.backend import RuntimeBackend
from lr_sglang.programs.autoregressive import autoregressive
from lr_sglang.programs.lookahead import lookahead
from lr_sglang.runtimes import load_deployment
from lr_sglang.runtimes.connect import deployed
from lr_sglang.steps.branch import Request
from lr_sglang.steps.trace import Trace
from lr_sglang.tasks.question import Question

# Answers at a time: a pass of a large target takes hardly longer for several.
AT_ONCE = 6
WAYS = "plain", "async", "sync"
NAMES = ("lookahead async", "lookahead sync", "sd", "lookahead+sd async", "lookahead+sd sync")


class Comparison:
    """The answers of one deployment, in every way, to each question.

    Attributes:
        equal: by way (see ``NAMES``), the number of answers that equal plain decoding's.
        gap: the largest difference between the log-probabilities of two tokens where an answer
            leaves plain decoding's.
        accepted, judged: steps.
    """

    def __init__(self, deployment: Deployment, questions: Sequence[Question]) -> None:
        self._deployment, self._questions = deployment, questions
        plain = deployment.runtimes["target"].replace(token_layer=TokenLayer())
        found = self._answers(
            deployment
        )  # the plain servers come last, because they also report log-probabilities
        with tempfile.TemporaryDirectory() as logs:
            alone = deployment.replace(runtimes={**deployment.runtimes, "target": plain})
            with deployed(alone, Path(logs)) as roles:
                known, *others = [self._way(way, roles) for way in WAYS]
                others += found
                pairs = [
                    pair for one in others for pair in zip(self._questions, known, one, strict=True)
                ]
                self.equal = [
                    sum(a.ids == b.ids for a, b in zip(known, one, strict=True)) for one in others
                ]
                self.gap = max((self._gap(roles["target"], *pair) for pair in pairs), default=0.0)
        traces = [trace for one in others for trace in one]
        self.accepted, self.judged = (
            sum(getattr(trace, what) for trace in traces) for what in ("accepted", "judged")
        )

    def _answers(self, deployment: Deployment) -> list[list[Trace]]:
        with tempfile.TemporaryDirectory() as logs, deployed(deployment, Path(logs)) as roles:
            return [self._way(way, roles) for way in WAYS]

    def _way(self, way: str, roles: dict[str, RuntimeBackend]) -> list[Trace]:
        with ThreadPoolExecutor(AT_ONCE) as pool:
            return list(pool.map(lambda one: self._answer(way, roles, one), self._questions))

    def _answer(self, way: str, roles: dict[str, RuntimeBackend], question: Question) -> Trace:
        ahead = way != "plain"
        look = Lookahead(depth=self._deployment.lookahead.depth, verifier="exact")
        if ahead:
            look = look.with_options(schedule=way)
        request = AnswerRequest(
            look, Sampling(temperature=0.0), Limits(max_tokens=400), question=question.id
        )
        if ahead:
            request.verifier = verifiers.make_verifier(
                "exact", verifiers.Setup(roles, self._deployment.judge_prompt)
            )
        (lookahead if ahead else autoregressive).run(
            _messages(question), request, backend=roles["target"]
        )
        return request.trace

    def _gap(self, target: RuntimeBackend, question: Question, known: Trace, other: Trace) -> float:
        at = next(
            (
                n
                for n, pair in enumerate(zip(known.ids, other.ids, strict=False))
                if len(set(pair)) == 2
            ),
            None,
        )
        if at is None:
            return 0.0 if known.ids == other.ids else math.inf
        prompt = target.tokenizer.chat(_messages(question), True).ids
        payload = {
            "input_ids": [*prompt, *known.ids[:at]],
            "sampling_params": {"max_new_tokens": 1, "temperature": 0},
            "return_logprob": True,
            "top_logprobs_num": 20,
        }
        reply = call(target.transport.generate(payload, Request(), 60.0), target.loop)
        likely = {
            token: logprob for logprob, token, _ in reply["meta_info"]["output_top_logprobs"][0]
        }
        return abs(likely.get(known.ids[at], math.inf) - likely.get(other.ids[at], -math.inf))


def _messages(question: Question) -> list[dict[str, str]]:
    return [{"role": "user", "content": question.question}]


def variant(
    deployment: Deployment, target: str = "", draft: str = "", dtype: str = ""
) -> Deployment:
    """The deployment with other models, and the target in another type."""
    runtimes = dict(deployment.runtimes)
    runtimes["target"] = runtimes["target"].replace(
        **{k: v for k, v in (("model", target), ("dtype", dtype)) if v}
    )
    if draft:
        runtimes["draft"] = runtimes["draft"].replace(model=draft)
    return deployment.replace(runtimes=runtimes)


@click.command(help=__doc__.split("\n\n")[0] if __doc__ else None)
@click.option(
    "--deployment", "name", default="pocket", show_default=True, help="Built-in name or TOML file."
)
@click.option("--target", default="", help="Models, with commas.  [default: the deployment's]")
@click.option("--draft", default="", help="Model.  [default: the deployment's]")
@click.option(
    "--dtype", default="float32", show_default=True, help="Types of the target, with commas."
)
@click.option("--questions", default=20, show_default=True)
def main(name: str, target: str, draft: str, dtype: str, questions: int) -> None:
    deployment, chosen = load_deployment(name), tasks.load("pocket", limit=questions)
    click.echo(
        f"| target | type | {' | '.join(NAMES)} | accepted | gap |\n|{'-|' * (len(NAMES) + 4)}"
    )
    for model in target.split(","):
        for each in dtype.split(","):
            found = Comparison(variant(deployment, model, draft, each), chosen)
            shown = model or deployment.runtimes["target"].model
            equal = " | ".join(map(str, found.equal))
            steps = f"{found.accepted} of {found.judged}"
            click.echo(
                f"| `{shown}` | {each} | {equal} of {len(chosen)} | {steps} | {found.gap:.3f} |"
            )


if __name__ == "__main__":
    main()
