"""docs/reference/states-and-events.md: the rule table of the state machine. Events have
their names in the journal.
"""

import ast
import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from textwrap import dedent
from typing import Any, get_args

from supervisor_tasks.jobs.events import Event, stored_name
from supervisor_tasks.jobs.model import EFFECTS_BY_STATE, EffectKind, State
from supervisor_tasks.jobs.state_machine import IGNORED, RULES, Rule, When, always
from tests.support.reference.markdown import head, item, paragraph, subitem, table
from tests.support.reference.markdown import page as text_of
from tests.support.reference.source import in_words, meanings

ABOUT = """`advance(job, event)` in `supervisor_tasks/jobs/state_machine.py` decides what an event makes of a job: the new
state, and the effects that are left to do. [The life of a job](../explanation/job-lifecycle.md) describes it in order."""
OVERVIEW = """A number is how many rules the event has in the state: the first one whose condition holds decides. A dash is
an event that the state ignores by declaration. An event has the name under which the journal stores it (`STORED_NAMES`
in `jobs/events.py`); its heading also has the name of its class, if that is another one."""
RULE_TEXT = """Of each rule: the states in which it holds, its condition, the states that it can bring the job into (if it
changes the state), and the effects that it can open."""
PACKAGE = "supervisor_tasks.jobs."
Found = tuple[frozenset[str], frozenset[str]]  # states, kinds of effect


def page() -> str:
    """The page's text."""
    lines = head("States and events", ABOUT)
    lines += ["## States", "", *_states(), ""]
    lines += [
        "## Which event has rules in which state",
        "",
        *paragraph(OVERVIEW),
        "",
        *_overview(),
        "",
    ]
    lines += ["## Rules", "", *paragraph(RULE_TEXT), ""]
    for event in get_args(Event):
        lines += [f"### {_heading(event)}", "", *paragraph(_about(event)), ""]
        lines += [*_rules(event), *_ignored(event), ""]
    return text_of(lines)


def _heading(event: type) -> str:
    name = stored_name(event)
    return name if name == event.__name__ else f"{name} (`{event.__name__}`)"


def _about(event: type) -> str:
    """The event's docstring, without its paragraphs."""
    return inspect.getdoc(event) or ""


def _states() -> Iterator[str]:
    meaning_of = meanings(State)
    for state in State:
        kinds = [
            f"`{kind.value}`" for kind in EffectKind if kind in EFFECTS_BY_STATE[state]
        ]
        yield from item(
            f"`{state.value}`: {meaning_of[state.name]} Effects that can be open: {', '.join(kinds)}."
        )


def _overview() -> list[str]:
    columns = ["event", *(state.value.lower() for state in State)]
    return table(columns, [_row(event) for event in get_args(Event)])


def _row(event: type) -> list[str]:
    return [stored_name(event), *(_cell(event, state) for state in State)]


def _cell(event: type, state: State) -> str:
    return str(len(RULES.get((event, state), ()))).replace("0", "–")


def _rules(event: type) -> Iterator[str]:
    """The rules of an event in the order in which they are tried, each with all states
    in which it holds.
    """
    of_rule: dict[tuple[When, Rule], list[State]] = {}
    for state in State:
        for pair in RULES.get((event, state), ()):
            of_rule.setdefault(pair, []).append(state)
    for (when, rule), states in of_rule.items():
        yield from item(
            f"**{in_words(rule.__name__)}** in {_names(states)}{_condition(when)}:"
        )
        after, effects = found_in(rule)
        if after:
            yield from subitem(f"state: {', '.join(_in_order(after, State))}")
        yield from subitem(
            f"effects: {', '.join(_in_order(effects, EffectKind)) or 'none'}"
        )


def _ignored(event: type) -> Iterator[str]:
    reasons: dict[str, list[State]] = {}
    for state in State:
        if (event, state) in IGNORED:
            reasons.setdefault(IGNORED[event, state], []).append(state)
    for reason, states in reasons.items():
        yield from item(f"ignored in {_names(states)}: {reason}")


def _names(states: Sequence[State]) -> str:
    return (
        "all states"
        if len(states) == len(State)
        else ", ".join(state.value for state in states)
    )


def _condition(when: When) -> str:
    """The condition's name in words; of a condition that a function makes, that
    function's name and its arguments.
    """
    if when is always:
        return ""
    values = [str(cell.cell_contents) for cell in when.__closure__ or ()]
    return f", if {' '.join([in_words(when.__qualname__.partition('.')[0]), *values])}"


def _in_order(names: frozenset[str], enum: type[State] | type[EffectKind]) -> list[str]:
    order = [*enum.__members__, EVENTS_KIND]
    texts = {one.name: one.value for one in enum} | {EVENTS_KIND: EVENTS_KIND}
    return [texts[name] for name in sorted(names, key=order.index)]


EVENTS_KIND = "the event's own"


@cache
def found_in(function: Callable[..., Any]) -> Found:
    """The states and the kinds of effect that a rule names, itself or in a function of
    jobs/ that it calls.
    """
    calls = [
        node
        for each in _closure(function)
        for node in _nodes(each)
        if isinstance(node, ast.Call)
    ]
    states = {name for call in calls for name in _states_set(call)}
    kinds = {name for call in calls for name in _kinds_opened(call)}
    return frozenset(states), frozenset(kinds)


@cache
def _nodes(function: Callable[..., Any]) -> list[ast.AST]:
    return list(ast.walk(ast.parse(dedent(inspect.getsource(function)))))


def _closure(function: Callable[..., Any]) -> list[Callable[..., Any]]:
    """A function and the functions of jobs/ that it calls, directly or not."""
    found = [function]
    for one in found:  # grows
        found += [called for called in _called_by(one) if called not in found]
    return found


@cache
def _called_by(function: Callable[..., Any]) -> list[Callable[..., Any]]:
    names = dict.fromkeys(
        node.id for node in _nodes(function) if isinstance(node, ast.Name)
    )
    values = [vars(sys.modules[function.__module__]).get(name) for name in names]
    functions = [value for value in values if inspect.isfunction(value)]
    return [value for value in functions if value.__module__.startswith(PACKAGE)]


def _states_set(call: ast.Call) -> set[str]:
    """The states that a call gives a job: replace(job, state=...), or the default of a
    new Job.
    """
    given = [keyword.value for keyword in call.keywords if keyword.arg == "state"]
    if _called(call) == "Job" and not given:
        return {State.CLAIMED.name}
    return {name for value in given for name in _members(value, "State")}


def _kinds_opened(call: ast.Call) -> set[str]:
    if _called(call) != "Effect":
        return set()
    return _members(call.args[0], "EffectKind") or {EVENTS_KIND}


def _called(call: ast.Call) -> str:
    return call.func.id if isinstance(call.func, ast.Name) else ""


def _members(tree: ast.expr, enum: str) -> set[str]:
    """The members of an enum that an expression names."""
    attributes = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    return {
        node.attr
        for node in attributes
        if isinstance(node.value, ast.Name) and node.value.id == enum
    }
