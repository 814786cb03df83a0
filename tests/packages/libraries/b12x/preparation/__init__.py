"""Plans and their preparation."""

from b12x.preparation.session import PreparationSession
from b12x.preparation.types import Plan, PreparedCall

__all__ = ["Plan", "PreparationSession", "PreparedCall"]
