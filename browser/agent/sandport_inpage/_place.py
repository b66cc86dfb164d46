"""Where the agent runs, as far as it shows in what it says and allows.

Invariant: the agent does the same everywhere; only its words, and whether it asks before it runs a tool, depend on
where the tools are: those of a page are confined, those that an editor or a terminal lends may be able to do anything.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sandport_inpage._turn import ASK, AUTO

__all__ = ["PAGE", "PLACES", "PROGRAM", "Place"]

MANNERS: Final = """\
Use them rather than guess, and say plainly what you did and what did not work. For a task of several steps, show your \
plan with update_plan and keep it up to date. Answer in Markdown."""


@dataclass(frozen=True, slots=True)
class Place:
    """A place and its words."""

    name: str
    """What the agent is called in `initialize`."""
    title: str
    instructions: str
    """The model's system prompt."""
    mode: str
    """Mode of a fresh session, a key of `MODES`."""
    modes: dict[str, tuple[str, str]]
    """Name and description of each mode."""
    elsewhere: str
    """Why a server of another transport is left out."""
    unreachable: str
    """What to look at when there is no answer from the endpoint."""
    wrong_key: str
    """What to look at when the endpoint refuses the key."""


PAGE: Final = Place(
    name="sandport-inpage",
    title="in-page agent",
    instructions=(
        "You are an agent in a web page. Your tools run in a confined Python sandbox of that page, whose files are "
        f"below /workspace; they have no network. {MANNERS}"
    ),
    mode=AUTO,
    modes={
        AUTO: ("Run tools", "The tools of this page run without a question: they are confined."),
        ASK: ("Ask first", "Every tool that is not marked as read-only asks before it runs."),
    },
    elsewhere="this agent runs in a page and reaches only servers that the page lends it",
    unreachable="See that it runs and allows this page's origin (CORS); the guide has the settings.",
    wrong_key="Check the key in the agent's settings.",
)

PROGRAM: Final = Place(
    name="sandport",
    title="Sandport agent",
    instructions=(
        "You are an agent that works through the tools that this conversation's client lends you. You have no others: "
        f"no files, network or commands of your own. {MANNERS}"
    ),
    mode=ASK,
    modes={
        ASK: ("Ask first", "Every tool that is not marked as read-only asks before it runs."),
        AUTO: (
            "Run tools",
            "Tools run without a question: for clients that ask by themselves, or confine their tools.",
        ),
    },
    elsewhere="this agent reaches only servers of type acp, which its client lends it over their connection",
    unreachable="See that the server runs, and that the address after --model is right.",
    wrong_key="Check the key in the agent's environment; --key-env names its variable.",
)

PLACES: Final = {"page": PAGE, "program": PROGRAM}
