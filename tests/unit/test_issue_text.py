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
SECRETS = {"HF_TOKEN": "abc123", "LR_SGLANG_RUN_TARGET": "http://user:pw@host:30000/v1"}


def test_settings_are_named_and_no_secret_is_told():
    said = doctor.issue_text(FOUND, SECRETS | {"AWS_SECRET_ACCESS_KEY": "k8", "MY_OWN": "k9"})
    assert not [one for one in ("abc123", "pw", "user", "k8", "key=1") if one in said]
    assert "- HF_TOKEN is set" in said and "- LR_SGLANG_RUN_TARGET is set" in said
    assert "AWS" not in said and "MY_OWN" not in said
    assert "https://mirror.example/hub" in said


def test_nobodys_home_is_named(monkeypatch):
    monkeypatch.setenv("HOME", "/home/" + "somebody")
    assert doctor.clean("/home/" + "somebody/models") == "~/models"
    assert doctor.clean("/home/" + "somebodyelse") == "/home/" + "somebodyelse"


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
