"""What is needed of SGLang's insides."""

from __future__ import annotations

import pytest

from lr_sglang.cpu import hooks
from lr_sglang.sglang_api import release


def test_the_installed_sglang_is_tested():
    assert release.is_tested(release.version())
    assert not release.is_tested("0.5.24rc1") and release.is_tested("0.5.16+cu130")


def test_an_untested_release_that_lacks_what_is_hooked_is_not_run():
    """SGLang would log that a hook has no place, and answer without seeds, for example."""
    hooks._need(["json.decoder.JSONDecoder.decode"])
    for name in ("json.decoder.JSONDecoder.gone", "json.decoder.Gone.decode", "json.gone.It"):
        with pytest.raises(SystemExit, match=rf"this SGLang has no {name}; tested with"):
            hooks._need([name])
