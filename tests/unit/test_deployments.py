"""Deployments: what the files may say, what an error says, and what the command line changes."""

from __future__ import annotations

from pathlib import Path

import pytest

from lr_sglang.config import ROLES
from lr_sglang.errors import ConfigError
from lr_sglang.runtimes import built_in, load_deployment, override_all
from lr_sglang.runtimes.placement import models

EXAMPLES = sorted((Path(__file__).parents[2] / "examples" / "deployments").glob("*.toml"))

TARGET = '[runtimes.target]\nmodel = "owner/name"\n'


@pytest.fixture
def written(tmp_path):
    def write(text: str | bytes) -> Path:
        path = tmp_path / "mine.toml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


def test_the_default_launches_the_three_pocket_models():
    deployment = load_deployment()
    assert deployment.name == "pocket" and "pocket" in built_in()
    assert {role: runtime.model for role, runtime in deployment.runtimes.items()} == {
        r: f"pocket:{r}" for r in ROLES
    }


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_can_be_read(path):
    assert "target" in load_deployment(path).runtimes


def test_a_deployment_is_named_after_its_file(written):
    assert load_deployment(written(TARGET)).name == "mine"


def test_a_role_may_share_the_runtime_of_another(written):
    deployment = load_deployment(written(f'[runtimes]\njudge = "target"\n{TARGET}'))
    assert deployment.runtime("judge") is deployment.runtimes["target"]
    assert deployment == load_deployment(written(f'{TARGET}[shared]\njudge = "target"\n'))


@pytest.mark.parametrize(
    ("judge", "prompt"),
    [
        ('[runtimes.judge]\nmodel = "pocket:judge"\n', "pocket"),
        ('[runtimes.judge]\nmodel = "pocket:judge@qwen3-0.6b"\n', "pocket"),
        ('[runtimes.judge]\nmodel = "Qwen/Qwen2.5-7B-Instruct"\n', "paper"),
        (
            '[runtimes.judge]\nurl = "http://here:1"\n',
            "",
        ),  # it is asked for its model when it is needed
        ('[shared]\njudge = "target"\n', "paper"),
        ("", "paper"),
    ],
)
def test_a_file_without_a_judge_prompt_has_that_of_its_judge(written, judge, prompt):
    assert load_deployment(written(TARGET + judge)).judge_prompt == prompt
    assert (
        load_deployment(written(f'judge_prompt = "paper"\n{TARGET}{judge}')).judge_prompt == "paper"
    )


def test_paths_that_begin_with_a_dot_are_relative_to_the_file(written, tmp_path):
    layer = 'token_layer = {algorithm = "eagle", draft_model = "../small"}'
    path = written(
        f'[runtimes.target]\nmodel = "./big"\n{layer}\nextra = {{lora-paths = "../more", n = 1}}\n'
    )
    runtime = load_deployment(path).runtimes["target"]
    assert runtime.model == str(tmp_path / "big")
    assert runtime.token_layer.draft_model == str(tmp_path / "../small")
    assert runtime.extra == {"lora-paths": str(tmp_path / "../more"), "n": 1}
    for folder in (".", "..", ".models/big"):
        path = written(f'[runtimes.target]\nmodel = "{folder}"\nextra = {{suffix = ".x"}}\n')
        runtime = load_deployment(path).runtimes["target"]
        assert (runtime.model, runtime.extra["suffix"]) == (str(tmp_path / folder), ".x")


@pytest.mark.parametrize(
    ("text", "said", "hinted"),
    [
        ("[runtimes.target\n", "this is not TOML", ""),
        (b"name = '\xff'\n", "this is not TOML", ""),
        ('[runtimes.target]\nmodle = "a"\n', "runtimes.target: unknown key 'modle'", "model?"),
        (
            "[runtimes.target]\nport = 1\n",
            "runtimes.target: a runtime needs either 'model' or 'url'",
            "",
        ),
        (
            '[runtimes.target]\nmodel = "a"\nport = "x"\n',
            "runtimes.target.port: input should be a valid integer",
            "",
        ),
        (
            '[runtimes.target]\nmodel = "a"\nport = 99999\n',
            "runtimes.target.port: input should be less than 65536, got 99999",
            "",
        ),
        ("[runtimes]\ntarget = 3\n", "runtimes.target: input should be a valid dictionary", ""),
        ("runtimes = 3\n", "runtimes: input should be a valid dictionary", ""),
        (f"shared = 3\n{TARGET}", "shared: input should be a valid dictionary", ""),
        ('[runtimes.drafter]\nmodel = "a"\n', "no such role", ""),
        ('[runtimes.draft]\nmodel = "a"\n', "at least [runtimes.target]", ""),
        (f'{TARGET}[shared]\njudge = "draft"\n', "there is no [runtimes.draft]", ""),
        (f"{TARGET}[lookahead]\ndeep = 3\n", "unknown key 'deep'", "depth?"),
        (f"{TARGET}[sampling]\ntop_p = 2\n", "top_p", ""),
        ("", "at least [runtimes.target]", ""),
    ],
)
def test_an_error_names_the_file_and_the_place(written, text, said, hinted):
    with pytest.raises(ConfigError) as caught:
        load_deployment(written(text))
    assert caught.value.message.startswith("mine.toml: ")
    assert said in caught.value.message and hinted in caught.value.hint


def test_a_name_that_is_no_deployment(tmp_path):
    with pytest.raises(ConfigError) as caught:
        load_deployment("pockets")
    assert "pockets" in caught.value.message and "pocket" in caught.value.hint
    for path in (tmp_path, "~nobody-of-this-name/mine.toml"):
        with pytest.raises(ConfigError, match="cannot read"):
            load_deployment(path)
    with pytest.raises(ConfigError, match="does not exist"):
        models.locate("~nobody-of-this-name/model")


def test_a_model_replaces_a_model_and_keeps_the_rest(written):
    path = written(f'{TARGET}port = 1234\ntokenizer = "t"\ngpus = [3]\n')
    runtime = override_all(load_deployment(path), {"target": "other/name"}).runtimes["target"]
    assert (runtime.model, runtime.port, runtime.gpus, runtime.tokenizer) == (
        "other/name",
        1234,
        (3,),
        "",
    )


def test_a_url_replaces_a_model_and_a_model_a_url():
    attached = override_all(load_deployment(), {"draft": "http://there:30000"})
    assert (
        attached.runtimes["draft"].url == "http://there:30000"
        and not attached.runtimes["draft"].model
    )
    assert (
        override_all(attached, {"draft": "pocket:draft"}).runtimes["draft"].model == "pocket:draft"
    )


def test_a_role_name_means_to_share_its_runtime():
    shared = override_all(load_deployment(), {"judge": "target"})
    assert shared.shared == {"judge": "target"} and "judge" not in shared.runtimes
    own = override_all(shared, {"judge": "owner/name"})
    assert not own.shared and own.runtimes["judge"].model == "owner/name"


def test_roles_may_change_together_in_any_order():
    """Where one alone could not be."""
    alone = override_all(load_deployment(), {"draft": "judge", "judge": "owner/name"})
    assert override_all(alone, {"judge": None, "target": None}) == alone
    assert (alone.shared, alone.runtimes["judge"].model) == ({"draft": "judge"}, "owner/name")
    shared = override_all(alone, {"judge": "target", "draft": "target"})
    assert set(shared.runtimes) == {"target"} and shared.shared == {
        "draft": "target",
        "judge": "target",
    }
    assert set(override_all(shared, {"draft": "a/b", "judge": "draft"}).runtimes) == {
        "target",
        "draft",
    }


@pytest.mark.parametrize(
    ("role", "value"),
    [
        ("drafter", "a"),
        ("judge", "judge"),
        ("target", "draft"),  # the draft's runtime then plays both, but who is the target?
    ],
)
def test_what_cannot_be_overridden(role, value):
    with pytest.raises(ConfigError):
        override_all(load_deployment(), {role: value})
