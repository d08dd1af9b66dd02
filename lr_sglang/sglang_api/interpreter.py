"""SGLang's frontend language for the rest of the package."""

from lr_sglang.errors import SetupError
from lr_sglang.sglang_api import release

try:
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
        SglSeparateReasoning,
    )
except ImportError as error:
    why = f"SGLang's frontend language cannot be imported: {error}"
    raise SetupError(why, hint=release.release_advice()) from error

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
    "SglSeparateReasoning",
    "StreamExecutor",
    "interpreter",
]
