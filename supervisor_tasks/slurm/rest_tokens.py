"""The tokens by which slurmctld knows whose request it is (auth/jwt). Pure.

slurmctld trusts a token that is signed with its own key (`jwt_key` of
AuthAltParameters). The claim `sun` names the Linux user, and after `exp`, by
slurmctld's clock, it rejects the token. So a request for a submission that arrives late
is rejected by SLURM itself.
"""

from dataclasses import dataclass, field

import jwt

ALGORITHM = "HS256"


@dataclass(frozen=True, slots=True)
class TokenMint:
    """Makes tokens with slurmctld's key (the bytes of its key file)."""

    key: bytes = field(repr=False)

    def token(self, user: str, now_s: int, expires_s: int) -> str:
        """Return a token of this Linux user until `expires_s`; both times are Unix
        times.
        """
        return jwt.encode(
            {"sun": user, "iat": now_s, "exp": expires_s}, self.key, algorithm=ALGORITHM
        )
