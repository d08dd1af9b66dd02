"""SGLang's frontend language for the rest of the package; an untested release is checked before it
is imported.
"""

from lr_sglang.sglang_api import language, need, release

if not release.is_tested(release.version()):
    need.check(language.NEEDS)

from sglang.lang import interpreter
from sglang.lang.backend.base_backend import BaseBackend
from sglang.lang.backend.runtime_endpoint import RuntimeEndpoint
from sglang.lang.chat_template import ChatTemplate
from sglang.lang.choices import ChoicesDecision, ChoicesSamplingMethod
from sglang.lang.interpreter import ProgramState, StreamExecutor
from sglang.lang.ir import (
    SglConcateAndAppend,
    SglExpr,
    SglExprList,
    SglFunction,
    SglGen,
    SglRoleEnd,
    SglSamplingParams,
    SglSelect,
)

__all__ = [
    "BaseBackend",
    "ChatTemplate",
    "ChoicesDecision",
    "ChoicesSamplingMethod",
    "ProgramState",
    "RuntimeEndpoint",
    "SglConcateAndAppend",
    "SglExpr",
    "SglExprList",
    "SglFunction",
    "SglGen",
    "SglRoleEnd",
    "SglSamplingParams",
    "SglSelect",
    "StreamExecutor",
    "interpreter",
]
