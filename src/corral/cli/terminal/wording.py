"""What the SDK says about its arguments, in the words of the command line's options."""

from __future__ import annotations

import re

_WORDS = (
    (r"wait=True \(`--wait`\)", "`--wait`"),
    (r"wait=True", "`--wait`"),
    (r"written as a list: requirements=\['(.*?)'\]", r"given as `--with \1`"),
    (r"^requirements:", "--with:"),
    (r"`entry`", "`--entry`"),
    (r"\bqueue_class\b", "--class"),
    (r"\bidempotency_key\b", "--key"),
    (r"\b(gpu_memory|vram_gb|memory_gb)\b", lambda found: f"--{found[1].replace('_', '-')}"),
    (r"\bgpus=", "--gpus "),
    (r"^((?:Give )?)(gpus|cpus|duration|priority|retries|name|user|batch)(?= )", r"\1--\2"),
)


def in_options(message: str) -> str:
    """A refusal as somebody reads it who typed options.

    >>> in_options("Give gpus (whole GPUs) or gpu_memory (a share of one GPU), not both.")
    'Give --gpus (whole GPUs) or --gpu-memory (a share of one GPU), not both.'
    """
    for written, spoken in _WORDS:
        message = re.sub(written, spoken, message)
    return message
