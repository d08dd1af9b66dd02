"""What lr-sglang needs of SGLang's frontend language, beside its public names (``sgl.gen``, ``sgl.function``)."""

from __future__ import annotations

from lr_sglang.sglang_api.need import Need

_INTERPRETER = "sglang.lang.interpreter"
NEEDS = (
    Need(f"{_INTERPRETER}.ProgramState", "is what a program works on", fields=("fork", "stream_executor", "text")),
    Need(
        f"{_INTERPRETER}.StreamExecutor",
        "is copied, forked and made to fail in ways of ours",
        fields=(
            *("arguments", "backend", "chat_template", "cur_role", "cur_role_begin_pos", "default_sampling_para"),
            *("fork_start_text_pos", "images_", "messages_", "queue", "stream_var_event", "text_", "use_thread"),
            *("variable_event", "variables", "worker"),
            *("_execute", "_resolve_sampling_params", "end", "fork", "messages", "submit", "sync", "text"),
        ),
    ),
    Need(
        f"{_INTERPRETER}.StreamExecutor.__init__",
        "makes a state beside another",
        ("backend", "arguments", "default_sampling_para", "chat_template", "stream"),
        closed=True,
    ),
    Need(f"{_INTERPRETER}.StreamExecutor.fork", "copies a state", ("size",), closed=True),
    Need(f"{_INTERPRETER}.StreamExecutor._execute", "does one expression", ("other",), closed=True),
    Need(
        f"{_INTERPRETER}.StreamExecutor._resolve_sampling_params",
        "settles a gen's parameters, which is done once for many",
        ("sampling_params",),
        closed=True,
    ),
    Need("sglang.lang.ir.SglGen", "is one gen"),
    Need("sglang.lang.ir.SglFunction", "is a program"),
    Need(
        "sglang.lang.ir.SglSamplingParams",
        "is what a gen asks for",
        fields=(
            *("max_new_tokens", "min_new_tokens", "n", "stop", "stop_token_ids", "stop_regex", "ignore_eos"),
            *("temperature", "top_p", "top_k", "min_p", "frequency_penalty", "presence_penalty"),
            *("return_logprob", "logprob_start_len", "dtype", "regex", "json_schema", "to_srt_kwargs"),
        ),
    ),
    Need(
        "sglang.lang.backend.base_backend.BaseBackend",
        "is what runs a program's expressions",
        fields=("generate", "generate_stream", "select", "end_program", "shutdown", "flush_cache", "get_model_name"),
    ),
    Need(
        "sglang.lang.backend.runtime_endpoint.RuntimeEndpoint._handle_dtype_to_regex",
        "turns a gen's dtype into a regex",
        ("sampling_params",),
        closed=True,
    ),
    Need(
        "sglang.lang.chat_template.ChatTemplate",
        "writes no role markers into a state's text",
        fields=("name", "default_system_prompt", "role_prefix_and_suffix"),
    ),
    Need("sglang.lang.choices.ChoicesDecision", "is what select returns", fields=("decision", "meta_info")),
    Need(
        "sglang.lang.choices.ChoicesSamplingMethod",
        "scores choices",
        fields=("__call__", "requires_unconditional_logprobs"),
    ),
    Need("sglang.srt.utils.hf_transformers_patches.apply_all", "is left out where no model runs", closed=True),
)
