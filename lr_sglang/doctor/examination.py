"""What runtimes that are up can do: what works, what does not, what to do about it; and which modes
pay there.

Every finding is one of ``engine.probes``, of the judge's check or of a few short answers.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from lr_sglang import tasks
from lr_sglang.algorithm import policy
from lr_sglang.api.configuration import Plan
from lr_sglang.api.runner import Runner
from lr_sglang.config import Role
from lr_sglang.doctor.finding import Examination, Expected, Finding, Status, fault, finding
from lr_sglang.engine import probes
from lr_sglang.engine.doubts import REUSED, JudgeCheck
from lr_sglang.engine.loop import call
from lr_sglang.engine.server_facts import ServerFacts
from lr_sglang.engine.tokenizer import thinks
from lr_sglang.errors import ConfigError, LookaheadError
from lr_sglang.frontend.backend import RuntimeBackend
from lr_sglang.modes import MODES
from lr_sglang.results import statistics
from lr_sglang.results.record import Record
from lr_sglang.runtimes.attach import TEXT, check_template
from lr_sglang.sglang_api.plugin_protocol import FED_SWITCH
from lr_sglang.tasks.question import Question, Work
from lr_sglang.theory import judged
from lr_sglang.theory.measured import AnswerFigures, measure_mode
from lr_sglang.user_programs.request_maker import RequestMaker
from lr_sglang.verifiers import known_pairs, verifier_registry

BATCHES = (1, 2, 4, 8, 16)
READS = (32, 256)
ROUNDS = 4  # of each, of which the fastest counts; fewer of more than FREE_ANSWERS at once
SHORT_PROMPT = 4  # tokens of a prompt after which tokens are timed
FREE_ANSWERS = 4  # answers at once that should take no more than twice the time of one
FIRST_TOKENS = "token at 1"
# The short answers: of so many problems, as many as an interval needs; of so many tokens.
PROBLEMS = statistics.LEAST_QUESTIONS
ANSWER_TOKENS = 64
WARM_TOKENS = 8
SLOW_ABORT = 1.0  # seconds
INSTALL_PLUGIN = (
    f"on its machine pip install --no-deps lr-sglang, start it with {FED_SWITCH}=1 and the flags "
    "of --speculative-algorithm NGRAM (docs/token-layer.md)"
)


def examine(roles: Mapping[str, RuntimeBackend], plan: Plan) -> Examination:
    """Asks the runtimes, in the caller's thread.

    Args:
        plan: its settings of lookahead are those that are tried.
    """
    made = Examination()
    made.lines.extend(_Examiner(roles, plan, made).lines())
    return made


class _Examiner:
    def __init__(self, roles: Mapping[str, RuntimeBackend], plan: Plan, made: Examination) -> None:
        self.roles = roles
        self.plan = plan
        self.made = made
        layer = bool(roles["target"].facts.token_layer)
        self.plain, self.ahead = (
            ("sd", "lookahead+sd") if layer else ("autoregressive", "lookahead")
        )
        self.look = plan.lookahead(self.ahead)
        self.judged = verifier_registry.needs_judge(self.look.verifier)
        self.maker = RequestMaker(roles, plan.deployment.judge_prompt)
        known = {backend.tokenizer.vocabulary for role, backend in roles.items() if role != "judge"}
        self.alike = len(known) == 1

    def lines(self) -> Iterator[Finding]:
        """All findings; those that take time only where lookahead can run."""
        shared = self.plan.deployment.shared
        first = [self._runtime(role) for role in self.roles if role not in shared]
        faulty = False
        for part in (*first, self._together(), self._judge(), self._costs(), self._trial()):
            try:
                for one in () if faulty and part not in first else part:
                    faulty = faulty or one.status == "fault"
                    yield one
            except LookaheadError as error:
                faulty = True
                yield fault(error, "requests")

    def _runtime(self, role: str) -> Iterator[Finding]:
        """What one runtime says of itself, and what it does."""
        backend = self.roles[role]
        loop = backend.loop
        transport = backend.transport
        prompt = list(backend.tokenizer.encode(TEXT))
        yield Finding(role, "server", "ok", _server(backend.facts, self.plan.models.get(role, "")))
        yield self._room(role)
        yield _abort(role, call(probes.measure_abort(transport, prompt), loop))
        differs = backend.doubts.found.get("tokens", "")
        yield finding(role, "tokens", not differs, "others" if differs else "as here", differs)
        if role == "judge":
            return
        yield _reuse(backend)
        facts = backend.facts
        ignored = facts.seed_fault or ("" if facts.seeded else "its settings ignore them")
        advice = (
            "draft and target share no draws, and the same seed gives other answers; on a GPU "
            "start it with --enable-deterministic-inference, on a CPU with our plugin"
        )
        yield finding(role, "seeds", not ignored, ignored or "honoured", advice)
        if role == "target":
            weighs, best = call(probes.gives_logprobs(transport, prompt), loop)
            found = "of prompts" if best else "of the tokens only" if weighs else "none of prompts"
            advice = "verifier likelihood and reading (lossless) need them"
            yield finding(role, "log-probabilities", weighs and best, found, advice)
            yield _lines(backend)
        arguments = facts.template_defaults
        try:
            differs = call(check_template(transport, backend.tokenizer, role, arguments), loop)
        except ConfigError as error:
            differs = f"{error.message}; {error.hint}"
        found = "another" if differs else "as here"
        yield finding(role, "chat template", not differs, found, differs)
        yield Finding(role, "thinking", "ok", _thinking(backend))

    def _room(self, role: str) -> Finding:
        facts = self.roles[role].facts
        sharing = self.plan.deployment.shared.items()
        asked: list[Role] = [one for one in self.roles if one == role or (one, role) in sharing]  # type: ignore[misc]
        wanted = self.plan.branches(asked, [self.ahead])
        most = policy.slot_limit(facts.max_running_requests, facts.kv_tokens, self.look)
        found = f"{facts.max_running_requests or 'unknown'} requests at a time, "
        found += f"{facts.kv_tokens or 'unknown'} tokens in its memory"
        advice = (
            f"depth {self.look.depth} can have {wanted} in flight: --max-running-requests "
            f"{wanted + policy.SPARE_SLOTS} where it is started"
        )
        if most is not None and most < 2 and role == "target" and "draft" in self.roles:
            return Finding(role, "room", "fault", found, advice)
        return finding(role, "room", most is None or most >= wanted, found, advice)

    def _together(self) -> Iterator[Finding]:
        """What the roles are to each other."""
        if "draft" not in self.roles:
            yield Finding("draft", "server", "fault", "none is given", "give --draft MODEL|URL")
            return
        advice = "steps are encoded again, and draws are not shared: take a draft of its family"
        differ = "draft and target have different ones"
        yield finding("", "vocabulary", self.alike, "the same" if self.alike else differ, advice)
        target, draft = (thinks(self.roles[role].tokenizer) for role in ("target", "draft"))
        if target != draft:
            yield Finding("", "thinking", "warning", "only one of target and draft thinks")
        if self.judged and "judge" not in self.roles:
            advice = "give --judge MODEL|URL (--judge target shares the target) or --verifier exact"
            yield Finding("judge", "server", "fault", "none is given", advice)

    def _judge(self) -> Iterator[Finding]:
        if not self.judged:
            return
        judge = self.roles["judge"]
        told = list[str]()
        judge.checks.warn = told.append
        call(self.maker.check_judge(self.look), judge.loop)
        check = judge.checks.of(self.look.verifier)
        status: Status = "warning" if told else "ok"
        if not check.trusted(self.look.max_false_accepts):
            status = "fault"
        said = f"accepts {check.found.accepted} of {check.found.asked} pairs of steps that differ"
        yield Finding("judge", "verdicts", status, said, "; ".join(told))

    def _costs(self) -> Iterator[Finding]:
        """Times each runtime alone, fills ``costs`` of the examination with that, and judges it."""
        costs = self.made.costs
        for role, batches, reads in (("target", BATCHES, READS), ("draft", BATCHES[:2], READS[:1])):
            if role in self.plan.deployment.shared:
                continue
            backend = self.roles[role]
            found = costs[role] = call(_times(backend, batches, reads), backend.loop)
            alone = found[FIRST_TOKENS]
            some = found.get(f"token at {FREE_ANSWERS}", 0.0)
            yield finding(
                role,
                "milliseconds",
                some <= 2 * alone,
                ", ".join(f"{name}: {ms:g}" for name, ms in found.items()),
                "answers at once slow each other down: branches are not free here",
            )
        if "draft" in costs and costs["target"][FIRST_TOKENS]:
            c1 = costs["draft"][FIRST_TOKENS] / costs["target"][FIRST_TOKENS]
            yield finding("", "c1", c1 < 1, f"{c1:.2f}", "the draft is no faster than the target")
        if self.judged:
            took = 1000 * min(self._verdict() for _ in range(2))
            costs["judge"] = {"verdict": round(took, 2)}
            yield Finding("judge", "milliseconds", "ok", f"verdict: {took:.2f}")

    def _verdict(self) -> float:
        """Seconds of a verdict."""
        pair = known_pairs.pairs(self.maker.judge_prompt)[:1]
        verifier = self.maker.verifier(self.look.verifier)
        check = JudgeCheck("", lambda _: None)
        began = time.monotonic()
        call(known_pairs.show(verifier, self.roles, check, pair), self.roles["judge"].loop)
        return time.monotonic() - began

    def _trial(self) -> Iterator[Finding]:
        """Makes short answers in each mode, enters them and their speeds into the examination, and
        says what follows from them.
        """
        facts = self.roles["target"].facts
        alone = facts.token_layer and not facts.fed  # lossless is then what ``plain`` is
        modes = [self.plain, self.ahead, *(["lossless"] if self.alike and not alone else [])]
        # short ones, of several kinds: each request of each mode has its problem in the prompt
        easy = [one for one in tasks.load("pocket") if one.extra["operations"] == 2]
        problems = sorted(easy, key=lambda one: len(one.question))[: 3 * PROBLEMS : 3]
        self._answers(problems[:1], modes, WARM_TOKENS)
        records = self._answers(problems, modes, ANSWER_TOKENS)
        for role in sorted({role for one in records for role in one["failures"]}):
            yield Finding(role, "answers", "warning", "some of its requests failed", "see its log")
        self.made.answers = len(problems)
        self.made.fed = facts.fed is not None
        self.made.modes = _expected(records, modes, self.look.depth)
        ahead = [one for one in records if one["mode"] == self.ahead]
        own = ahead[0]["own_draws"]
        greedy = self.plan.deployment.sampling.greedy
        advice = "draft and target agree less often than they could"
        yield finding("", "shared draws", not own or greedy, own or "shared", advice)
        compared, accepted = (sum(one[name] for one in ahead) for name in ("judged", "accepted"))
        found = f"{accepted} of {compared} drafted steps of {len(ahead)} short answers"
        advice = "the draft is too weak for this target, or the judge too strict"
        yield finding("", "acceptance", 2 * accepted >= compared, found, advice)

    def _answers(self, some: Sequence[Question], modes: Sequence[str], tokens: int) -> list[Record]:
        """Records of short answers, without warnings, which are lines of their own.

        Raises:
            LookaheadError: an answer failed.
        """
        limits = self.plan.deployment.limits.replace(max_tokens=tokens)
        # each mode comes first in turn: what it computes is in the caches of the others
        works = [
            Work(problem, 0, modes[(n + turn) % len(modes)])
            for turn, problem in enumerate(some)
            for n in range(len(modes))
        ]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            settings = self.plan.with_settings(limits=limits)
            records = list(Runner(self.roles, settings, guesses=True).run(works))
        for error in (one["error"] for one in records if one["error"]):
            raise LookaheadError(error["message"], role=error["role"], hint=error["hint"])
        return records


def _server(facts: ServerFacts, model: str) -> str:
    infos = facts.infos
    about: Mapping[str, Any] = infos[0] if infos else {}
    known = [
        f"SGLang {version}" if (version := about.get("version")) else "",
        str(about.get("device") or ""),
        f"{len(infos)} workers" if len(infos) > 1 else "",
        f"context {facts.context}",
        f"pages of {page}" if (page := about.get("page_size")) else "",
        f"cache {facts.prefix_cache}" if facts.prefix_cache else "",
        f"token layer {facts.token_layer or 'none'}",
        f"reasoning parser {parser}" if (parser := about.get("reasoning_parser")) else "",
        f"tool parser {facts.tool_call_parser}" if facts.tool_call_parser else "",
    ]
    return ", ".join(one for one in (model or str(about.get("model_path", "")), *known) if one)


def _reuse(backend: RuntimeBackend) -> Finding:
    share = call(probes.measure_reuse(backend.transport), backend.loop)
    if share is None:
        return Finding(backend.role, "reuse", "warning", "it does not report cached tokens")
    found = f"{share:.2f} of the tokens that could be in its cache"
    return finding(backend.role, "reuse", share >= REUSED, found, backend.facts.little_reuse)


def _lines(backend: RuntimeBackend) -> Finding:
    """Whether a target takes what the draft writes ahead, and how it would."""
    if fed := backend.facts.fed:
        how = "as plain decoding draws" if fed.draws == "seeds" else "the same distribution"
        found = f"verifies {fed.width - 1} tokens of the draft at a time, {how}"
        return Finding(backend.role, "token layer fed", "ok", found)
    why = backend.doubts.found.get("fed", "")
    # without it answers are exact too
    layer = backend.facts.token_layer
    alone = layer and f"; {layer} writes lossless answers alone"
    found = why or f"no{alone or ''}; to have it: {INSTALL_PLUGIN}"
    return finding(backend.role, "token layer fed", not why, found, INSTALL_PLUGIN)


async def _times(
    backend: RuntimeBackend, batches: Sequence[int], reads: Sequence[int]
) -> dict[str, float]:
    """Milliseconds of a token by answers at once, and of reading so many tokens."""
    found = {}
    for n in batches:
        if backend.facts.room is None or n <= backend.facts.room:
            prompts = probes.random_prompts(n, tokens=SHORT_PROMPT)
            rounds = ROUNDS if n <= FREE_ANSWERS else probes.PROBE_ROUNDS
            found[f"token at {n}"] = await probes.token_seconds(backend.transport, prompts, rounds)
    for new in reads:
        found[f"reading {new}"] = await probes.read_seconds(backend.transport, new)
    return {name: round(1000 * took, 2) for name, took in found.items()}


def _abort(role: str, found: probes.Abort | None) -> Finding:
    if found is None:
        return Finding(role, "abort", "ok", "not seen: an answer was complete before")
    return finding(
        role,
        "abort",
        found.taken and found.seconds < SLOW_ABORT,
        f"after {1000 * found.seconds:.0f} ms" if found.taken else "not taken",
        "branches that were refused go on and slow the others down; behind a proxy, let "
        "/abort_request through",
    )


def _thinking(backend: RuntimeBackend) -> str:
    tokenizer = backend.tokenizer
    if not thinks(tokenizer):
        return "its template opens none"
    end = tokenizer.thinking.closes
    size = len(tokenizer.encode(end, True))
    return f"ends with {end}, {size} token{'s' * (size > 1)}"


def _expected(records: Sequence[Record], modes: Sequence[str], depth: int) -> list[Expected]:
    def faster(mode: str, other: str) -> statistics.Estimate:
        """How many times as fast as another mode, by the problems that both have answered."""
        both = [
            {one["question_id"]: one for one in records if one["mode"] == m} for m in (mode, other)
        ]
        columns = [
            [
                of[problem][name] if name == "seconds" else of[problem]["tokens"]["used"]
                for problem in both[0]
            ]
            for of in both
            for name in ("tokens", "seconds")
        ]
        found = statistics.product(columns, (1, -1, -1, 1), len(both[0]))
        assert found is not None
        return found

    def pace(mode: str) -> float:
        mine = [one for one in records if one["mode"] == mode]
        used = sum(one["tokens"]["used"] for one in mine)
        return float(used / sum(one["seconds"] for one in mine))

    alone = pace(modes[0])
    made = list[Expected]()
    for mode in modes:
        formula = best = None
        if MODES[mode].ahead and not MODES[mode].lossless:
            try:
                found = measure_mode(map(AnswerFigures.of, records), mode)
                case = judged.Case(
                    found.alpha, found.c1, found.judge, found.slowdown or 1.0, found.steps
                )
                formula = case.speedup(found.schedule, found.depth)
                best = judged.best_depth(case, found.schedule, max(1, depth)).depth
            except ConfigError:  # a draft that is slower than the target
                pass
        gain = faster(mode, modes[0])
        sure = tuple(
            other
            for other in modes
            if other != mode and (least := faster(mode, other).low) is not None and least > 1
        )
        ends = (None, None) if mode == modes[0] else (gain.low, gain.high)
        made.append(Expected(mode, pace(mode), pace(mode) / alone, *ends, sure, formula, best))
    return made
