"""The schema of the chart's values: what it refuses before Helm renders anything."""

import json
from typing import Any

import jsonschema
import pytest
import yaml

from devgrid import REPOSITORY

CHART = REPOSITORY / "docker" / "helm" / "grid-supervisor"
SCHEMA: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text())
VALUES = (CHART / "values.yaml").read_text()
PRICE = "METASCHEDULER_CPU_PRICE_PER_MIN"
CLUSTER = {
    "name": "main",
    "wallet": {"existingSecret": "wallet"},
    "jwtKey": {"existingSecret": "jwt"},
    "callbacks": {"networks": ["10.0.0.0/8"]},
}


def values(settings: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """A site's values with these settings, for all clusters or for one."""
    defaults = yaml.safe_load(VALUES)
    return {
        "site": defaults | {"clusters": [CLUSTER], "settings": settings},
        "cluster": defaults | {"clusters": [CLUSTER | {"settings": settings}]},
    }


@pytest.mark.parametrize("where", ["site", "cluster"])
@pytest.mark.parametrize("number", ["950000000000000000", "1000000", "2.5", "3"])
def test_settings__a_number__is_refused_as_helm_would_change_it(
    where: str, number: str
) -> None:
    """Helm reads each number as a float: `9.5e+17` would be the environment's text."""
    quoted = values({PRICE: number, "SLURM_ACCOUNTING": True})[where]
    jsonschema.validate(quoted, SCHEMA)
    bare = values({PRICE: yaml.safe_load(number)})[where]
    with pytest.raises(jsonschema.ValidationError) as refused:
        jsonschema.validate(bare, SCHEMA)
    assert refused.value.path[-1] == PRICE
    assert refused.value.validator_value == ["string", "boolean"]
