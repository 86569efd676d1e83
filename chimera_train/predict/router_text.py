"""What a router reads of a prompt, the same in training, simulations and the gateway.

``user`` is the text of the user's messages, as published (Chimera §3.3): what is asked.
``system+user`` puts the system prompt before it, with an empty line between them. It tells apart
the same question in different roles, which matters where a pool serves several workflows whose
system prompts differ; for one workflow it spends tokens on what is the same everywhere. The name of
a workflow is not read: a request need not say it, and a new name would mean nothing.
"""

from typing import Literal

__all__ = ["Reads", "router_text"]

Reads = Literal["user", "system+user"]


def router_text(reads: Reads, system: str, user: str) -> str:
    """The text that a router reads.

    Args:
        reads: which parts of the prompt.
        system: the system prompt, empty where there is none.
        user: the text of all other messages.
    """
    if reads == "system+user" and system:
        return f"{system}\n\n{user}"
    return user
