"""An exact answer, or steps of one, by reading: propose, read, accept (docs/theory.md).

The draft writes a piece of some tokens. The target reads it in one pass, and tells what it would
have written at each of its places. The answer takes the piece up to the first token that differs,
and the target's token there. The draft goes on while the target reads.
"""

from __future__ import annotations

from lr_sglang.algorithm.answer import Answer
from lr_sglang.algorithm.reading import CHECKED, Ids, Reading
from lr_sglang.engine.branch import Branch
from lr_sglang.errors import LookaheadError
from lr_sglang.frontend.dsl import fork
from lr_sglang.steps.step import DELIMITER, StepStop
from lr_sglang.steps.tree import Outcome


async def read_answer(answer: Answer) -> bool:
    """Writes the answer until it ends, or the policy looks ahead again. Returns False where reading
    does not pay, or cannot go on.
    """
    reading, ahead = Reading(answer), None
    if answer.reader.must_check:
        reading.take(await check_reading(reading), 0)
    while not answer.over and answer.reader.can_read() and reading.pays():
        # the step that is begun is read to its end
        last = not answer.reader.reads_alone(answer.policy)
        if last and not reading.unfinished:
            break
        draft = ahead or propose_piece(reading, last=last)
        piece = await drafted(reading, draft)
        target = read_piece(reading, piece)
        goes_on = not last and reading.goes_on(piece)
        ahead = propose_piece(reading, piece) if goes_on else None
        await reading.ended(target)
        own = answer.reader.draws(target, len(piece))
        whole = bool(own) and reading.accept(piece, own)
        reading.close(target, Outcome.ACCEPTED if whole else Outcome.CORRECTED)
        if draft is not None:
            reading.close(draft, Outcome.ACCEPTED if whole else Outcome.REJECTED)
        if ahead is not None and not whole:
            reading.close(ahead, Outcome.CANCELLED)
            ahead = None
    while reading.unfinished and not answer.over:
        await finish_step(reading)
    return answer.over or (reading.pays() and not answer.job.exact)


def propose_piece(reading: Reading, after: Ids = (), *, last: bool = False) -> Branch | None:
    """The draft writes a piece after the answer so far and the tokens ``after``; if it is the
    ``last`` one, up to the end of the step.
    """
    if reading.undecided:
        return None
    draft = fork(reading.state(after), "draft")
    branch = reading.begin_branch("draft", draft, after)
    tokens = min(reading.answer.job.experience.piece(), reading.room(after))
    draft += reading.gen(tokens, role="draft", **({"stop": StepStop(DELIMITER)} if last else {}))
    return branch


async def drafted(reading: Reading, draft: Branch | None) -> Ids:
    """The piece that the draft has written; none where it has failed."""
    if draft is None:
        return ()
    try:
        return (await reading.result(draft)).ids
    except LookaheadError as error:
        reading.answer.draft_failed(error)
        return ()


def read_piece(reading: Reading, piece: Ids) -> Branch:
    """The target reads a piece, and writes the token after it."""
    target = fork(reading.state(piece), "target")
    branch = reading.begin_branch("target", target, piece, reads=True)
    target += reading.gen(1, **reading.answer.reader.options(len(piece)))
    return branch


async def finish_step(reading: Reading) -> None:
    """The target writes the rest of a step of which some tokens are accepted: what was drawn
    stays.
    """
    target = fork(reading.state(), "target")
    written = reading.begin_branch("target", target)
    target += reading.gen(reading.room(), stop=StepStop(DELIMITER))
    reading.take((await reading.result(written)).ids, 0)
    reading.close(written, Outcome.BONUS)


async def check_reading(reading: Reading) -> Ids:
    """The target writes some tokens and reads them: what it reads must be what it wrote."""
    target = fork(reading.state(), "target")
    written = reading.begin_branch("target", target)
    target += reading.gen(min(CHECKED, reading.room()), return_logprob=True, top_logprobs_num=1)
    result = await reading.result(written)
    again = read_piece(reading, result.ids)
    await reading.ended(again)
    reading.answer.reader.check(result, again)
    reading.close(again, Outcome.CANCELLED)
    reading.close(written, Outcome.BONUS)
    return result.ids
