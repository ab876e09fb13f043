"""Who a caller is and what that allows: three roles, each with the rights of those before it."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from corral.core.errors import Forbidden


class Role(StrEnum):
    READ = "read"
    SUBMIT = "submit"
    """Submits, cancels, retries and moves jobs."""
    ADMIN = "admin"


_RANK = {role: rank for rank, role in enumerate(Role)}


class Caller(Struct, frozen=True):
    """Whoever holds a token. The home's own token has no name and is admin."""

    name: str
    role: Role

    @property
    def is_owner(self) -> bool:
        """Whether it is the home's own token."""
        return not self.name and self.role is Role.ADMIN

    def needs(self, role: Role) -> None:
        if _RANK[self.role] < _RANK[role]:
            raise Forbidden(
                f"This needs a token with the role {role}; {self.name!r} has {self.role}. Ask for "
                "one: `corral token create`.",
                details={"role_needed": role.value, "role": self.role.value},
            )

    def user(self, said: str) -> str:
        """Whose job it is: a token's own, unless an admin says otherwise."""
        if said not in ("", self.name) and self.role is not Role.ADMIN:
            raise Forbidden(
                f"Jobs of this token belong to {self.name!r}; only an admin's token may name "
                "another user. Leave user (--user) out.",
                details={"role_needed": Role.ADMIN.value, "role": self.role.value},
            )
        return said or self.name

    def on_behalf(self, said: str) -> bool:
        """Whether a job with this `said` user is another's than the caller's own."""
        return self.user(said) != self.name
