"""Why a server died, from its log: the error and a hint for the person who started it."""

from __future__ import annotations

import re
from pathlib import Path

from lr_sglang.sglang_api import release

TAIL_BYTES = 1 << 18

# The first pattern that is found in the log gives the hint.
HINTS: tuple[tuple[str, str], ...] = (
    (
        r"error: unrecognized arguments|error: argument |invalid choice|Unknown speculative",
        "the installed SGLang refuses a flag: look at 'extra', 'dtype', 'quantization' and "
        "'token_layer' of this runtime, and at: python -m sglang.launch_server --help",
    ),
    (
        r"address already in use|[Pp]ort is already in use|is used by a process already",
        "another process has the port: give a free 'port', or leave it out and one is chosen",
    ),
    (
        r"CUDA out of memory|OutOfMemoryError|Not enough memory|Cannot allocate memory",
        "not enough memory: change 'memory_fraction', give the roles different 'gpus', or take "
        "a smaller model",
    ),
    (
        r"gated repo|401 Client Error|403 Client Error|Access to model .* is restricted"
        r"|is not a valid model identifier|Repository ?Not ?Found|HFValidationError"
        r"|404 Client Error|Couldn't connect to|LocalEntryNotFoundError|OfflineModeIsEnabled"
        r"|Max retries exceeded|ConnectionError: ",
        "no such model, or the hub is out of reach, or refuses it (accept its terms there and set "
        "HF_TOKEN): check the name, or give the path of a directory",
    ),
    (
        r"does not appear to have a file named|Unrecognized model in|Should have a `model_type` key"
        r"|Cannot find any model weights|no .*safetensors|not a valid JSON file|JSONDecodeError",
        "the directory is not a whole model: it needs config.json, the tokenizer's files and "
        "*.safetensors",
    ),
    (
        r"No accelerator|Torch not compiled with CUDA|no NVIDIA driver|CUDA is not available"
        r"|No CUDA GPUs|invalid device ordinal",
        "no such GPU is visible: set device = 'cpu', or check 'gpus' and lr-sglang doctor",
    ),
    (
        r"has no CPU version in lr-sglang",
        "this model or option needs a GPU; on a CPU use dense models (Qwen3, Llama) in float32",
    ),
    (
        r"fatal error: .*: No such file|cc1plus|[Nn]inja|directory: '(?:nvcc|c\+\+)'"
        r"|Could not find (?:nvcc|CUDA installation)|CUDA_HOME .*not set|cannot find -lcudart",
        "SGLang compiles parts of itself when it starts: lr-sglang doctor says what is missing",
    ),
)
KILLED = (
    "the system killed it, most likely for want of memory: take a smaller model or fewer runtimes"
)

_ERROR = re.compile(r"^(?:\S+ )?(?:[\w.]*(?:Error|Exception|Exit)\b: ?.+|\S+: error: .+)$")
# Log lines that our code inside a server wrote, without the figures in brackets at their end.
_NOTE = re.compile(r"(?:^|\] )lr-sglang: (.+?)(?: \([^()]*\))?$", re.MULTILINE)
_NOISE = re.compile(r"Rank 0 scheduler died|Initialization failed")
# Lines of a healthy start that would match a pattern: models that need other packages, the list of
# all settings.
_HARMLESS = re.compile(r"Ignore import error when|server_args=|No CUDA runtime is found|Warning: ")


def tail(log: Path, lines: int = 30) -> str:
    """The last lines of a log; all states of a progress bar count as one line."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - TAIL_BYTES))
            text = file.read().decode(errors="replace")
    except OSError:
        return ""
    kept = [line.rsplit("\r", 1)[-1].rstrip() for line in text.replace("\r\n", "\n").split("\n")]
    return "\n".join([line for line in kept if line][-lines:])


def notes(log_text: str) -> list[str]:
    """The notes that our code inside a server wrote into its log, each once."""
    return list(dict.fromkeys(_NOTE.findall(log_text)))


def cause(log_text: str) -> str:
    """The last line that names an error, or an empty string."""
    for line in reversed(log_text.splitlines()):
        if _ERROR.match(line) and not _NOISE.search(line):
            return line[:300]
    return ""


def hint(log_text: str, status: int | None) -> str:
    """Advice for the user from the log or the exit status; empty if there is none."""
    why = cause(log_text)
    told = "\n".join(line for line in log_text.splitlines() if not _HARMLESS.search(line))
    for text in (why, told):
        for pattern, advice in HINTS:
            if re.search(pattern, text):
                return advice
    # 137 without an error in the log: SGLang, which kills itself by the same signal, would have
    # logged one.
    if status == 137 and not why:
        return KILLED
    found = release.version()
    return "" if release.is_tested(found) else f"SGLang {found} is not tested; {release.advice()}"
