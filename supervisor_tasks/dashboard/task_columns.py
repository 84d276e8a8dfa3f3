"""How Flower's table shows a task: ids cut, so that the columns fit 1,280 pixels. Its
search knows the whole ids. Pure.
"""

import re
from typing import Any

ID = re.compile(r"0x[0-9a-f]{38,64}")
ID_CHARACTERS = 10
MAX_ARGUMENT_CHARS = 44  # characters
MAX_RESULT_CHARS = 68
COLUMNS = "name,args,result,state,received,runtime,uuid"


def shown_task(task: Any) -> Any:
    """Return Flower's task with short arguments and a short result."""
    task.args = _short(task.args, MAX_ARGUMENT_CHARS)
    task.result = _short(task.result, MAX_RESULT_CHARS)
    return task


def _short(text: object, most: int) -> str:
    """Return a text with cut ids; empty for no text, and for an empty list of
    arguments.
    """
    if text in (None, "", "()", "None"):
        return ""
    short = ID.sub(lambda found: found[0][:ID_CHARACTERS], str(text)).strip("'\"")
    return short if len(short) <= most else f"{short[: most - 1]}…"
