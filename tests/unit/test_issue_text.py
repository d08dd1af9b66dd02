"""``doctor --report`` says what an issue needs, and nothing that should stay at home."""

from click.testing import CliRunner

from lr_sglang.cli import cli, doctor
from lr_sglang.cli.doctor import Check, Findings
from lr_sglang.sglang_api import release

FOUND = Findings(
    [Check("model hub", "ok", "https://me:pw@mirror.example/hub?key=1")],
    True,
    False,
    [],
    ["It runs."],
)
SECRETS = {
    "HF_TOKEN": "abc123",
    "LR_SGLANG_API_KEYS": "k1,k2",
    "LR_SGLANG_RATER_KEY": "k3",
    "SGLANG_PASSWORD": "k4",
    "LR_SGLANG_RUN_TARGET": "http://user:pw@host:30000/v1?api_key=k5#k6",
    "LR_SGLANG_RUN_DRAFT": "http://user:k0,pw@host/x,https://me@there",
    "LR_SGLANG_RUN_NAME": "hf_abcdefghijkl",
    "LR_SGLANG_RUN_OUTPUT": "sk-0123456789abcdef",
    "CUDA_X": "Bearer k7k7k7k7",
}


def test_secrets_are_taken_out():
    said = doctor.issue_text(FOUND, SECRETS | {"AWS_SECRET_ACCESS_KEY": "k8", "MY_OWN": "k9"})
    for secret in ("abc123", "pw", "abcdefghijkl", "0123456789", *(f"k{n}" for n in range(10))):
        assert secret not in said, secret
    assert "`HF_TOKEN=(set, not shown)`" in said
    assert "`LR_SGLANG_RUN_TARGET=http://host:30000/v1`" in said
    assert "`LR_SGLANG_RUN_DRAFT=http://host/x,https://there`" in said
    assert "AWS" not in said and "MY_OWN" not in said
    assert "https://mirror.example/hub" in said


def test_nobodys_home_is_named(monkeypatch):
    monkeypatch.setenv("HOME", "/home/" + "somebody")
    values = dict(
        doctor.settings(
            {"HF_HOME": "/home/" + "somebody/models", "HF_X": "/home/" + "somebodyelse"}
        )
    )
    assert values == {"HF_HOME": "~/models", "HF_X": "/home/" + "somebodyelse"}


def test_lines_cannot_be_forged():
    said = doctor.issue_text(FOUND, {"LR_SGLANG_RUN_NAME": "a\n### Versions\n- sglang: 9"})
    assert said.count("\n### Versions") == 1


def test_the_command(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("LR_SGLANG_API_KEYS", "very-secret")
    result = CliRunner().invoke(cli, ["doctor", "--report"])
    assert result.exit_code == 0, result.output
    sglang = f"- sglang: {release.version()}"
    for part in ("### Versions", sglang, "### Machine", "- CPU:", "### Settings", "pocket models"):
        assert part in result.stdout
    assert "very-secret" not in result.stdout
    assert CliRunner().invoke(cli, ["doctor", "--report", "--json"]).exit_code == 2
