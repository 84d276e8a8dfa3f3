"""The filter of a list that an operator asks for: one customer, and a time span."""

from datetime import timedelta


def filter_parameters(
    customer: str | None, since: timedelta | None
) -> dict[str, object]:
    """The parameters of a list's filter: rows of customers whose address begins so, and
    not older than that. None leaves all rows in.
    """
    return {
        "customer": f"{customer.lower()}%" if customer else None,
        "since_s": None if since is None else since.total_seconds(),
    }
