"""scripts/gpu_campaign.sh: the items that it runs, and where it goes on."""

import os
import subprocess

import pytest

from tests import ROOT
from tests.called import called
from tests.serving import until

ITEMS = ["table", "roles", "modes", "weak", "load", "depth", "sd"]
SMALL = "pocket-target,pocket-draft,pocket-judge"


@pytest.fixture
def campaign(tmp_path, popen):
    """scripts/gpu_campaign.sh on a program that only writes down what it was called with."""
    program, calls = tmp_path / "lr-sglang", tmp_path / "calls"
    program.write_text(
        "#!/usr/bin/env bash\nline=$* item=table\n"
        'while [ $# -gt 0 ] && [ "$1" != --output ]; do shift; done\n'
        'if [ "$1" = --output ]; then item=${2##*/} item=${item%.json}; fi\n'
        'case $line in bench*) mkdir -p "$2" && touch "$2/run.json" ;; esac\n'
        f'echo "$item $line" >>{calls}\n'
        '[ "$item" != "${FAILS-}" ] || exit 3\n'
        'if [ "$item" = "${HANGS-}" ]; then exec sleep 60; fi\n'
    )
    program.chmod(0o755)

    def run(*arguments, **variables):
        calls.write_text("")
        command = ["bash", "scripts/gpu_campaign.sh", *arguments, tmp_path / "out"]
        programs = {"LR_SGLANG": str(program), "PYTHON": str(program)}
        environ = {**os.environ, **programs, "SHAPES": SMALL, "FLAGS": "x=1", **variables}
        process = popen(command, cwd=ROOT, env=environ, stdout=subprocess.PIPE, text=True)
        if "HANGS" in variables:
            until(lambda: f"\n{variables['HANGS']} " in "\n" + calls.read_text(), 60, 0.01)
            process.terminate()
        out, _ = process.communicate(timeout=60)
        made = [line.split() for line in calls.read_text().splitlines()]
        return process.returncode, out, {line[0]: line[1:] for line in made}

    return run


def test_a_campaign_goes_on_where_it_was_cut_off(campaign, tmp_path):
    status, out, made = campaign("--help")
    assert status == 0 and not made and "scripts/gpu_campaign.sh [--print]" in out
    status, out, made = campaign("--print")
    assert status == 0 and not made and [line.split()[0] for line in out.splitlines()] == ITEMS
    expected = [int(line.split()[1]) for line in out.splitlines()]
    assert sum(expected) < 40 * 60 and max(expected) < 9 * 60 - 30
    status, _, made = campaign(HANGS="weak")
    assert (
        status == 143
        and list(made) == ITEMS[:4]
        and not any("--resume" in line for line in made.values())
    )
    with (tmp_path / "out" / "campaign.jsonl").open("a") as file:
        file.write('{"item": "dep')  # as it is where a machine goes while it is written
    status, out, made = campaign(FAILS="load")
    assert status == 0 and list(made) == ITEMS[3:] and "load: ended with status 3" in out
    assert "--resume" in made["weak"] and "--resume" not in made["sd"]
    assert (
        not campaign()[2]
        and list(campaign(ITEMS="load depth")[2]) == ["load"]
        and not campaign(ITEMS="load")[2]
    )


def test_every_item_of_a_campaign_is_a_command_that_can_be(campaign, here):
    from benchmarks import role_times  # it leaves torch out, unless SGLang is imported already

    made = campaign()[2]
    for item in ("table", *ITEMS[2:]):
        called(*made[item], "--print", "--json")
    assert made["roles"][:2] == ["-m", "benchmarks.role_times"]
    context = role_times.main.make_context("role_times", made["roles"][2:])
    assert (
        context.params["batches"].split(",")[-1] == "98"
        and context.params["prefixes"] == "1024,8192,32768"
    )
    roles = role_times.deployment_of("", SMALL, ("x=1",)).runtimes
    assert [one.model for one in roles.values()] == [f"dummy:{name}" for name in SMALL.split(",")]
    assert all(one.extra == {"x": "1"} and not one.token_layer.on for one in roles.values())


def test_a_piece_of_a_campaign_begins_what_it_can_end(campaign):
    status, out, made = campaign(MINUTES="1")
    assert status == 0 and not made and out.count("no time is left") == 7
    assert list(campaign(MINUTES="4.5")[2]) == ["table", "roles"], (
        "the first, and what takes no longer than is left"
    )
    assert list(campaign(MINUTES="4.5")[2]) == ["modes"]
    assert list(campaign(MINUTES="4.5")[2]) == ["weak"]
