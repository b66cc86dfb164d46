"""The chat as a person has it, on a terminal: questions, forms, progress, Ctrl-C, history, colours.

Run with SANDPORT_CLI, the command's module in a compiled package; `chat.test.mjs` does that.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from tests.hosts.terminal import CTRL_C, CTRL_D, UP, Terminal

CLI = os.environ.get("SANDPORT_CLI", "")
ROOT = Path(__file__).parents[2]
TOOLS = str(ROOT / "tests/hosts/chat_tools.py")


def chat(*options: str, own: bool = True, env: dict[str, str] | None = None) -> Terminal:
    """The chat with Sandport's own agent, or with one that does not ask."""
    assert CLI, "run tests/hosts/chat.test.mjs: it compiles the package first"
    node = shutil.which("node")
    assert node is not None
    agent = [CLI, "agent"] if own else [str(ROOT / "examples/agent/agent.mjs")]
    return Terminal([node, CLI, "--tools", TOOLS, *options, "--", node, *agent], env)


def test_questions_forms_and_progress() -> None:
    with chat() as terminal:
        began = terminal.expect("you › ")
        assert "Nothing isolates tools here" in began
        assert "Sandport agent has" in began

        terminal.say('Call double with {"n": 21}')
        assert '{"n":21}' in terminal.expect(r"May double run\?.*\n.*y Allow   a Always .*   n Do not run it")
        terminal.say("what?")
        terminal.expect("Type one of y, a, n")
        terminal.say("y")
        # One question for one call: the sandbox takes the answer that the agent got.
        assert "May" not in terminal.expect("you › ")

        terminal.say("Call look with {}")
        assert "?" not in terminal.expect("✓ look")
        terminal.expect("you › ")

        terminal.say("Call order with {}")
        terminal.expect(r"user asks: What shall it be\?")
        terminal.expect(r"Size \(integer\) ›")
        terminal.say("large")
        terminal.expect("Type a whole number")
        terminal.say("3")
        terminal.expect(r"Name \[nobody\] ›")
        terminal.say("")
        assert "accept Order(size=3, name='nobody')" in terminal.expect("you › ")

        terminal.say("Call forever with {}")
        terminal.expect(r"forever: 1 of 3 sorting … \d+ s")
        terminal.send(CTRL_C)
        assert "Ctrl-C again ends" in terminal.expect(r"\(cancelled\)")
        terminal.expect("you › ")

        # What was typed is in the history, answers are not.
        terminal.send(UP)
        terminal.expect("Call forever with {}")
        terminal.send(UP)
        terminal.expect("Call order with {}")
        terminal.send(CTRL_C)
        terminal.expect("you › $")
        terminal.send(CTRL_C)
        terminal.expect("Ctrl-C again, or Ctrl-D, ends")
        terminal.send(CTRL_D)
        assert terminal.wait() == 0


def test_an_agent_that_does_not_ask_and_a_second_ctrl_c() -> None:
    with chat(own=False) as terminal:
        terminal.expect("you › ")
        terminal.say('call double {"n": 4}')
        terminal.expect(r"May user/double run\? {\"n\":4}.*\n.*y Yes   a Always this tool   n No")
        terminal.say("n")
        terminal.expect("double failed: The person at the terminal did not allow the tool double to run")
        terminal.expect("you › ")
        terminal.say('call double {"n": 5}')
        terminal.expect("n No")
        terminal.say("a")
        terminal.expect("double says: 10")
        terminal.expect("you › ")
        terminal.say('call double {"n": 6}')
        assert "May" not in terminal.expect("double says: 12")
        terminal.expect("you › ")

        # Ctrl-C at a question takes it away with the turn.
        terminal.say('call double {"n": 7}')
        terminal.expect("double says: 14")
        terminal.say("call forever {}")
        terminal.expect(r"… \d+ s")
        terminal.send(CTRL_C)
        terminal.expect("Stopping")
        terminal.send(CTRL_C)
        assert terminal.wait() == 130


def test_without_colours_and_with_yes() -> None:
    with chat("--yes", "--prompt", 'call double {"n": 2}', own=False, env={"NO_COLOR": "1"}) as terminal:
        assert terminal.wait() == 0
        assert "every call of a tool is allowed" in terminal.raw
        assert "double says: 4" in terminal.raw
        assert "\x1b[3" not in terminal.raw
        assert "May" not in terminal.raw
